//! Errors and panics as one line of text, for the record of a run.

use core::any::Any;
use core::error::Error;
use core::fmt::Write;

/// The error and everything that caused it, joined by colons.
pub(crate) fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// What a panic said, where it said something readable.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn chain_names_every_cause_once() {
        let error = Outer(std::io::Error::other("refused"));
        assert_eq!(error_chain(&error), "cannot send: refused");
    }

    #[test]
    fn panics_of_both_text_types_are_read() {
        assert_eq!(panic_message(&"a"), "a");
        assert_eq!(panic_message(&String::from("b")), "b");
        assert_eq!(panic_message(&7_u8), "no message");
    }
}
