//! Makes inputs out of others, as a fuzzer does: by many small changes, without looking at what they do.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// Longest input, unless one that it is made of is longer.
const MAX_LEN: usize = 4096;
/// Longest token.
const MAX_TOKEN_LEN: usize = 40;
/// Numbers at which something overflows, is cut off, or begins.
const NUMBERS: [&[u8]; 8] =
    [b"0", b"1", b"-1", b"65536", b"4294967296", b"18446744073709551615", b"ffffffffffffffff", b"007"];
/// Bytes that end or begin something, in text and in binary.
const BYTES: &[u8] = b"\0\x01\x7f\x80\xff\r\n\t :;,=\"%/\\";

pub(crate) struct Mutator {
    rng: StdRng,
    bases: Vec<Vec<u8>>,
    /// The words of the bases, and what stands between them.
    tokens: Vec<Vec<u8>>,
}

impl Mutator {
    /// Makes inputs out of these. The same seed makes the same inputs.
    pub(crate) fn new(bases: Vec<Vec<u8>>, seed: u64) -> Self {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        let words = bases.iter().flat_map(|base| base.chunk_by(|one, next| is_word(one) == is_word(next)));
        let words = words.filter(|word| word.len() <= MAX_TOKEN_LEN).chain(NUMBERS);
        let tokens = words.map(<[u8]>::to_vec).collect::<BTreeSet<_>>().into_iter().collect();
        Mutator { rng: StdRng::seed_from_u64(seed), bases, tokens }
    }

    /// Returns another input.
    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        if self.rng.random_ratio(1, 6) {
            return self.random_input();
        }
        let mut input = self.base();
        let longest = input.len().max(MAX_LEN);
        // Mostly one change or two, which leave the rest in order.
        while {
            self.change(&mut input);
            self.rng.random_ratio(3, 5)
        } {}
        input.truncate(longest);
        input
    }

    /// Returns random bytes, which are as good as any where an input is a list of operations. `arbitrary` ends a list
    /// at the first even byte in front of an element, so most bytes are odd.
    fn random_input(&mut self) -> Vec<u8> {
        let odd = [0.5, 0.9, 0.97][self.rng.random_range(0..3)];
        let len = self.rng.random_range(1..600);
        (0..len).map(|_| self.rng.random::<u8>() | u8::from(self.rng.random_bool(odd))).collect()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let (start, end) = self.range(input.len());
        match self.rng.random_range(0..9) {
            0 if start < input.len() => input[start] ^= 1 << self.rng.random_range(0..8),
            1 if start < input.len() => input[start] = self.byte(),
            2 => drop(input.drain(start..end)),
            // Once more, in the same place or in another.
            3 => {
                let copied = input[start..end].to_vec();
                let at = if self.rng.random() { end } else { self.rng.random_range(0..=input.len()) };
                drop(input.splice(at..at, copied));
            }
            4 => {
                let token = self.token();
                drop(input.splice(start..start, token));
            }
            5 => {
                let token = self.token();
                drop(input.splice(start..end, token));
            }
            // The rest of another input.
            6 => {
                let other = self.base();
                let (from, _) = self.range(other.len());
                drop(input.splice(start.., other[from..].iter().copied()));
            }
            // A part of another input.
            7 => {
                let other = self.base();
                let (from, to) = self.range(other.len());
                drop(input.splice(start..start, other[from..to].iter().copied()));
            }
            _ => {
                let len = self.rng.random_range(1..8);
                let bytes = self.random_bytes(len);
                drop(input.splice(start..start, bytes));
            }
        }
    }

    /// Returns a place up to this length and one behind it, mostly near.
    fn range(&mut self, len: usize) -> (usize, usize) {
        let start = self.rng.random_range(0..=len);
        let most = if self.rng.random_ratio(3, 4) { 8 } else { len };
        (start, (start + self.rng.random_range(0..=most)).min(len))
    }

    fn base(&mut self) -> Vec<u8> {
        self.bases.choose(&mut self.rng).cloned().unwrap_or_default()
    }

    fn token(&mut self) -> Vec<u8> {
        self.tokens.choose(&mut self.rng).cloned().unwrap_or_default()
    }

    fn byte(&mut self) -> u8 {
        if self.rng.random() { self.rng.random() } else { BYTES[self.rng.random_range(0..BYTES.len())] }
    }

    fn random_bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }
}
