//! Buffers that the connections of a worker share, so that an idle connection has none.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;

/// Bytes that are read at a time.
const READ_BYTES: usize = 32 << 10;
/// A larger buffer for writing is not kept.
const MAX_SPARE_BYTES: usize = 64 << 10;

/// The buffers of one worker.
#[derive(Clone)]
pub(super) struct Scratch(Rc<Inner>);

struct Inner {
    read: RefCell<Box<[u8]>>,
    /// A buffer for writing that no connection uses at the moment.
    spare: Cell<Vec<u8>>,
    /// The current date as a header, and the second since 1970 that it states.
    date: RefCell<(u64, HeaderValue)>,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch(Rc::new(Inner {
            read: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
            spare: Cell::default(),
            date: RefCell::new((u64::MAX, HeaderValue::from_static(""))),
        }))
    }
}

impl Scratch {
    /// Returns the buffer for reading. What is read has to be taken out before anything else runs.
    pub(super) fn read(&self) -> RefMut<'_, Box<[u8]>> {
        self.0.read.borrow_mut()
    }

    /// Returns an empty buffer for writing.
    pub(super) fn take(&self) -> Vec<u8> {
        self.0.spare.take()
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&self, mut buffer: Vec<u8>) {
        if (1..=MAX_SPARE_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.spare.set(buffer);
        }
    }

    /// Returns the current date as a header.
    pub(super) fn date(&self) -> HeaderValue {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (of, date) = &mut *self.0.date.borrow_mut();
        if *of != second {
            *of = second;
            *date =
                HeaderValue::try_from(httpdate::fmt_http_date(now)).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
        date.clone()
    }
}
