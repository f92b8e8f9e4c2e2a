//! Where commands write: the only place that touches standard output and standard error.

use std::fmt;
use std::io::{self, Write};

/// The two streams of a command. A reader that went away is remembered, never a panic.
pub(crate) struct Output {
    standard: Box<dyn Write>,
    error: Box<dyn Write>,
    is_broken: bool,
}

impl Output {
    /// The streams of this process.
    pub(crate) fn of_process() -> Self {
        Self::new(Box::new(io::stdout()), Box::new(io::stderr()))
    }

    /// Any two streams.
    pub(crate) fn new(standard: Box<dyn Write>, error: Box<dyn Write>) -> Self {
        Self {
            standard,
            error,
            is_broken: false,
        }
    }

    /// Writes a result.
    pub(crate) fn print(&mut self, text: &str) {
        let written = self.standard.write_all(text.as_bytes());
        self.is_broken |= written.and_then(|()| self.standard.flush()).is_err();
    }

    /// Writes a message and a line feed to standard error; when nobody reads that there is nobody to tell.
    pub(crate) fn complain(&mut self, message: impl fmt::Display) {
        drop(writeln!(self.error, "{message}"));
    }

    /// Whether a result was lost because nobody reads it.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("is_broken", &self.is_broken)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Streams that a test can read.

    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// What was written to one stream.
    #[derive(Clone, Default)]
    pub(crate) struct Written(Rc<RefCell<Vec<u8>>>);

    impl Written {
        /// The text so far.
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.borrow().clone()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An output with its two streams.
    pub(crate) fn captured() -> (Output, Written, Written) {
        let (standard, error) = (Written::default(), Written::default());
        let output = Output::new(Box::new(standard.clone()), Box::new(error.clone()));
        (output, standard, error)
    }
}
