//! From what the driver says to what a caller can act on.

use evenhand_store::{StoreError, StoreErrorKind};

/// What a server's refusal means. Its codes of class `EV` are our own, raised by the functions in `migrations/`.
pub(crate) fn kind_of_sqlstate(code: &str) -> StoreErrorKind {
    use StoreErrorKind as Kind;

    match code {
        "EV001" => Kind::PolicyConflict,
        "EV002" => Kind::PolicyNotFound,
        "EV003" => Kind::ReservationConflict,
        "EV004" => Kind::Expired,
        "EV005" => Kind::ClockSkew,
        "EV006" => Kind::SequenceExhausted,
        "EV007" => Kind::Retired,
        "EV008" => Kind::Corrupt,
        "EV009" => Kind::LeaseLost,
        "EV010" => Kind::LimitReached,
        "EV011" => Kind::RunConflict,
        "EV014" => Kind::Pending,
        // The backend was told to end; whether it had committed before is not said.
        "57P01" | "57P02" => Kind::OutcomeUnknown,
        // The statement was refused or undone, and may fare better later: no connection to be had, starting up, a
        // serialisation failure, a deadlock, a lock or statement timeout, an idle transaction ended, a cancelled
        // statement, an id that came in two shards at once.
        "53300" | "57P03" | "40001" | "40P01" | "55P03" | "25P03" | "57014" | "23505" => {
            Kind::Unavailable
        }
        _ if code.starts_with("08") => Kind::OutcomeUnknown,
        // Out of disk, memory or connections.
        _ if code.starts_with("53") => Kind::Unavailable,
        _ => Kind::Invalid,
    }
}

/// A failure of a statement that was sent.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "whatever else the driver reports, no answer came"
)]
pub(crate) fn of_statement(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(refusal) => {
            let kind = refusal
                .code()
                .map_or(StoreErrorKind::Invalid, |code| kind_of_sqlstate(&code));
            let message = refusal.message().to_owned();
            StoreError::new(kind, message).with_source(error)
        }
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_) => {
            StoreError::new(StoreErrorKind::Corrupt, "the answer cannot be read").with_source(error)
        }
        sqlx::Error::Encode(_) => {
            StoreError::new(StoreErrorKind::Invalid, "the request cannot be written")
                .with_source(error)
        }
        _ => StoreError::new(
            StoreErrorKind::OutcomeUnknown,
            "the connection broke before the answer came",
        )
        .with_source(error),
    }
}

/// A failure to get a connection: nothing was sent.
pub(crate) fn of_connect(
    error: impl Into<Box<dyn core::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "no connection to the database").with_source(error)
}

/// Something on record that cannot be.
pub(crate) fn corrupt(error: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "what is on record cannot be read").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_a_crash_may_be_asked_again() {
        for code in [
            "57P01", "57P02", "57P03", "08000", "08006", "53300", "25P03", "40001", "40P01",
            "55P03", "57014", "23505",
        ] {
            assert!(
                StoreError::new(kind_of_sqlstate(code), "x").is_retryable(),
                "{code}"
            );
        }
        for code in ["EV001", "EV005", "EV012", "42501", "22P02"] {
            assert!(
                !StoreError::new(kind_of_sqlstate(code), "x").is_retryable(),
                "{code}"
            );
        }
    }
}
