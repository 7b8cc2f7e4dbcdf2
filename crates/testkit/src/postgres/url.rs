//! The few changes that a connection URL needs; everything else in it stays as the user wrote it.

use core::net::SocketAddr;

/// The same URL for another database of the server.
pub(super) fn with_database(url: &str, database: &str) -> String {
    let (scheme, authority, _, parameters) = parts(url);
    format!("{scheme}{authority}/{database}{parameters}")
}

/// The same URL for another place to connect to.
pub(super) fn with_address(url: &str, address: SocketAddr) -> String {
    let (scheme, authority, path, parameters) = parts(url);
    let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
    format!("{scheme}{user}{address}{path}{parameters}")
}

/// Splits into `postgres://`, `user:password@host:port`, `/database` and `?parameters`; the last two may be empty.
fn parts(url: &str) -> (&str, &str, &str, &str) {
    let (address, parameters) = url.split_at(url.find('?').unwrap_or(url.len()));
    let (scheme, rest) = address.split_at(address.find("://").map_or(0, |at| at + 3));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (scheme, authority, path, parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_is_replaced() {
        for (url, expected) in [
            (
                "postgres://postgres@127.0.0.1:5432/postgres",
                "postgres://postgres@127.0.0.1:5432/x",
            ),
            (
                "postgres://postgres@127.0.0.1:5432",
                "postgres://postgres@127.0.0.1:5432/x",
            ),
            (
                "postgres://u:p@h/a?sslmode=disable",
                "postgres://u:p@h/x?sslmode=disable",
            ),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }

    #[test]
    fn only_the_address_is_replaced() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        for (url, expected) in [
            (
                "postgres://postgres@host:5432/a",
                "postgres://postgres@127.0.0.1:7/a",
            ),
            (
                "postgres://u:p@host/a?x=y",
                "postgres://u:p@127.0.0.1:7/a?x=y",
            ),
            ("postgres://host", "postgres://127.0.0.1:7"),
        ] {
            assert_eq!(with_address(url, address), expected);
        }
    }
}
