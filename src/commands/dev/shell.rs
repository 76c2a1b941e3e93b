//! Words and programs as a shell takes them.

use std::path::{Path, PathBuf};

/// Returns a word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@%+,{}".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a command line as a shell takes it.
pub(super) fn line(command: &[String]) -> String {
    command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Returns how this program is called from anywhere: by its name if that finds it, otherwise by its path.
pub(super) fn own_program() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("segue"));
    let is_own = |path: &Path| path.canonicalize().is_ok_and(|path| Some(path) == own.canonicalize().ok());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("segue")).find(|path| path.is_file());
    if found.is_some_and(|found| is_own(&found)) { "segue".to_owned() } else { quoted(&own.to_string_lossy()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_takes_them() {
        let words = ["python3", "{port}", "a b", "it's", ""].map(str::to_owned);
        assert_eq!(line(&words), r"python3 {port} 'a b' 'it'\''s' ''");
    }
}
