//! Input that arrives in pieces: the fuzzer chooses where it is cut.

/// Splits off the first byte of the input and cuts the rest into pieces. 0 leaves one piece. Otherwise the lengths
/// cycle from 1 to that byte. So a seed file is readable: one character, followed by the bytes themselves.
pub fn cut(data: &[u8]) -> Option<(u8, Vec<&[u8]>)> {
    let (&how, mut rest) = data.split_first()?;
    let how = if how.is_ascii_digit() { how - b'0' } else { how };
    if how == 0 {
        return Some((how, vec![rest]));
    }
    let mut pieces = Vec::new();
    let mut length = 1;
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = later;
        length = if length >= usize::from(how) { 1 } else { length + 1 };
    }
    Some((how, pieces))
}
