// What the scripts of the page share: elements of the document, and numbers in words.

export const byId = (id) => document.getElementById(id);
export const setText = (id, text) => { if (byId(id).textContent !== text) byId(id).textContent = text; };
export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString('en')} ${count === 1 ? one : many}`;

// Content is shown as text, never as markup.
export function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}
