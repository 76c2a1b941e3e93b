"""The comparison as a picture: for each load the CPU time a request of every proxy, as a multiple of HAProxy's in the
same round. A dot is the median over the rounds, its line goes from the least to the most."""

import statistics
from html import escape

COLOURS = {
    "nginx": "#5b8c5a",
    "Pingora": "#b07aa1",
    "Envoy": "#d1662a",
    "Segue": "#2f6db3",
    "byte pump": "#888888",
}
LEFT, WIDTH, ROW, TOP = 360, 640, 56, 70


def picture(collected, figure="cpu_us", reference="HAProxy"):
    """An SVG of `collected`, as `run.py --json` writes it."""
    rows = []
    for label, of in collected.items():
        ratios = {
            name: [one / other for one, other in zip(of[name][figure], of[reference][figure])]
            for name in of
            if name in COLOURS
        }
        rows.append((label, ratios))
    most = max(1.2, *(value for _, ratios in rows for values in ratios.values() for value in values)) * 1.03
    height = TOP + ROW * len(rows) + 40

    def x(value):
        return LEFT + value / most * WIDTH

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22">CPU time a request, as a multiple of {escape(reference)}\'s in the same round</text>',
    ]
    at = LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<circle cx="{at + 5}" cy="42" r="5" fill="{colour}"/><text x="{at + 15}" y="46">{name}</text>')
        at += 130
    step = 0.25 if most < 3 else 0.5
    for index in range(int(most / step) + 1):
        value = index * step
        strong = abs(value - 1) < 1e-9
        parts.append(
            f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 10}" y2="{height - 32}" '
            f'stroke="{"#444" if strong else "#ddd"}"/>'
            f'<text x="{x(value):.1f}" y="{height - 14}" text-anchor="middle" fill="#555">{value:g}</text>'
        )
    for index, (label, ratios) in enumerate(rows):
        top = TOP + index * ROW
        parts.append(f'<text x="{LEFT - 12}" y="{top + ROW / 2}" text-anchor="end">{escape(label)}</text>')
        for place, name in enumerate(name for name in COLOURS if name in ratios):
            values, y = ratios[name], top + 6 + place * (ROW - 14) / (len(COLOURS) - 1)
            parts.append(
                f'<line x1="{x(min(values)):.1f}" x2="{x(max(values)):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{COLOURS[name]}" stroke-width="2"/>'
                f'<circle cx="{x(statistics.median(values)):.1f}" cy="{y:.1f}" r="4.5" fill="{COLOURS[name]}"/>'
            )
    return "\n".join([*parts, "</svg>", ""])
