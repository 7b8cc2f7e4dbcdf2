//! Which user a server runs as. PostgreSQL refuses to run as root, so root hands it to an ordinary user.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The users that root hands a server to, in order of preference.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// Settings of libpq and the server that must not leak from the caller's shell into a private server.
const FOREIGN_VARIABLES: [&str; 10] = [
    "PGDATA",
    "PGHOST",
    "PGHOSTADDR",
    "PGPORT",
    "PGUSER",
    "PGPASSWORD",
    "PGDATABASE",
    "PGOPTIONS",
    "PGSERVICE",
    "PGSSLMODE",
];

/// No user was found that a server could run as.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// The list of users cannot be read.
    #[error("cannot read /etc/passwd to choose the user that PostgreSQL runs as")]
    Unreadable(#[source] io::Error),
    /// Neither candidate exists.
    #[error(
        "PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as"
    )]
    NoCandidate,
}

/// The user that servers run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerUser {
    /// The user of this process, who is not root.
    Myself,
    /// An unprivileged user, because this process is root's.
    Other {
        /// The login name.
        name: String,
        /// The user's number.
        uid: u32,
        /// The number of the user's first group.
        gid: u32,
    },
}

impl ServerUser {
    /// Chooses the user: oneself, or for root `postgres` if it exists, else `nobody`.
    pub(super) fn detect() -> Result<Self, UserError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let passwd = fs::read_to_string("/etc/passwd").map_err(UserError::Unreadable)?;
        CANDIDATES
            .iter()
            .find_map(|name| user_in(&passwd, name))
            .ok_or(UserError::NoCandidate)
    }

    /// How messages name this user.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Myself => "the current user",
            Self::Other { name, .. } => name,
        }
    }

    /// A command that runs as this user, in `/`, with a fixed locale and without the caller's PostgreSQL settings.
    ///
    /// It gets a process group of its own: Ctrl-C on a terminal must reach us alone, so that we stop servers in order.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .current_dir("/")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .process_group(0);
        for variable in FOREIGN_VARIABLES {
            command.env_remove(variable);
        }
        if let Self::Other { uid, gid, .. } = self {
            command.uid(*uid).gid(*gid);
        }
        command
    }

    /// Makes this user the owner of `path`.
    pub(super) fn take_ownership(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Myself => Ok(()),
            Self::Other { uid, gid, .. } => chown(path, Some(*uid), Some(*gid)),
        }
    }

    /// The number of the user who owns what [`Self::take_ownership`] was called on.
    pub(super) fn uid(&self) -> u32 {
        match self {
            Self::Myself => rustix::process::geteuid().as_raw(),
            Self::Other { uid, .. } => *uid,
        }
    }

    /// Whether this user can reach the folder `path`.
    ///
    /// The kernel is asked by really entering it as that user, so that modes of all parents, groups and access lists
    /// count as they do for the server itself.
    pub(super) fn can_enter(&self, path: &Path) -> bool {
        match self {
            Self::Myself => path.is_dir(),
            Self::Other { .. } => self
                .command("true")
                .current_dir(path)
                .status()
                .is_ok_and(|status| status.success()),
        }
    }

    /// The first folder for temporary files that this user can reach and that `fits`.
    ///
    /// `TMPDIR` comes first, but root's may be closed to others, and macOS's can be too long for a socket.
    pub(super) fn temp_folder(&self, fits: impl Fn(&Path) -> bool) -> io::Result<PathBuf> {
        [
            std::env::temp_dir(),
            PathBuf::from("/tmp"),
            PathBuf::from("/var/tmp"),
        ]
        .into_iter()
        .filter_map(|folder| folder.canonicalize().ok())
        .find(|folder| fits(folder) && self.can_enter(folder))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no folder for temporary files that {} can use", self.name()),
            )
        })
    }
}

/// Finds `name` in the text of a passwd file. Negative numbers, as macOS writes them for `nobody`, wrap around.
fn user_in(passwd: &str, name: &str) -> Option<ServerUser> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let mut numbers = fields.skip(1).map(user_number);
        Some(ServerUser::Other {
            name: name.to_owned(),
            uid: numbers.next()??,
            gid: numbers.next()??,
        })
    })
}

fn user_number(text: &str) -> Option<u32> {
    let signed = text.parse::<i32>().map(i32::cast_unsigned);
    text.parse().or(signed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        ## a comment, as macOS has them\n\
        nobody:*:-2:-2:Unprivileged User:/var/empty:/usr/bin/false\n\
        broken:x:one:two::/:/bin/sh\n\
        postgres:x:101:104:PostgreSQL:/var/lib/postgresql:/bin/bash\n";

    #[test]
    fn users_are_found_by_their_exact_name() {
        let user = |name: &str, uid, gid| {
            Some(ServerUser::Other {
                name: name.to_owned(),
                uid,
                gid,
            })
        };
        assert_eq!(user_in(PASSWD, "postgres"), user("postgres", 101, 104));
        assert_eq!(
            user_in(PASSWD, "nobody"),
            user("nobody", 4_294_967_294, 4_294_967_294)
        );
        assert_eq!(user_in(PASSWD, "post"), None);
        assert_eq!(user_in(PASSWD, "broken"), None);
    }
}
