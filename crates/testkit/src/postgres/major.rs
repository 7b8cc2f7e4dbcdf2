use core::fmt;
use core::str::FromStr;

/// A major version of PostgreSQL that Evenhand supports: 15, 16, 17 or 18.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Major(u16);

/// The given text or number is not a supported major version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PostgreSQL {0} is not supported, only 15, 16, 17 and 18 are")]
pub struct UnsupportedMajor(String);

impl Major {
    /// Every supported major, oldest first.
    pub const ALL: [Self; 4] = [Self(15), Self(16), Self(17), Self(18)];

    /// The number itself, such as 17.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The environment variable that names this major's folder of binaries, such as `EVENHAND_POSTGRES_17_BIN`.
    pub fn bin_variable(self) -> String {
        format!("EVENHAND_POSTGRES_{self}_BIN")
    }
}

impl TryFrom<u16> for Major {
    type Error = UnsupportedMajor;

    fn try_from(number: u16) -> Result<Self, UnsupportedMajor> {
        Self::ALL
            .into_iter()
            .find(|major| major.0 == number)
            .ok_or_else(|| UnsupportedMajor(number.to_string()))
    }
}

impl FromStr for Major {
    type Err = UnsupportedMajor;

    fn from_str(text: &str) -> Result<Self, UnsupportedMajor> {
        let number: u16 = text
            .parse()
            .map_err(|_| UnsupportedMajor(text.to_owned()))?;
        Self::try_from(number)
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_supported_majors_parse() {
        for (text, supported) in [
            ("14", false),
            ("15", true),
            ("18", true),
            ("19", false),
            ("", false),
            ("17.2", false),
            ("70000", false),
        ] {
            assert_eq!(text.parse::<Major>().is_ok(), supported, "{text:?}");
        }
    }
}
