//! The private folder of one server: its data, its log and its socket, all removed together.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::user::ServerUser;

const PREFIX: &str = "evenhand-pg-";

/// Held locked for as long as the owner of the folder lives; the kernel lets go of it however the owner ends.
const OWNER_FILE: &str = "owner";

/// Sockets have room for 104 bytes on macOS and 108 on Linux, and a terminating NUL.
const SOCKET_PATH_MAX: usize = 100;
const LONGEST_SOCKET_NAME: &str = "/evenhand-pg-abcdef/.s.PGSQL.65535.lock";

/// A folder that belongs to one server and its user. Dropping it removes it.
#[derive(Debug)]
pub(super) struct ServerFolder {
    folder: TempDir,
    _owner: File,
}

impl ServerFolder {
    /// Makes a folder for `user`, after removing those that dead owners left behind.
    pub(super) fn create(user: &ServerUser) -> io::Result<Self> {
        let base = user.temp_folder(|folder| {
            folder.as_os_str().len() + LONGEST_SOCKET_NAME.len() <= SOCKET_PATH_MAX
        })?;
        remove_abandoned(&base, user);
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&base)?;
        // Locked under another name first: nobody may find the file before its lock is held.
        let unlocked = folder.path().join("owner.new");
        let owner = File::create(&unlocked)?;
        owner.lock()?;
        fs::rename(&unlocked, folder.path().join(OWNER_FILE))?;
        user.take_ownership(folder.path())?;
        Ok(Self {
            folder,
            _owner: owner,
        })
    }

    /// The folder itself, which also holds the socket.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The data directory, made by `initdb`.
    pub(super) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// What the server printed.
    pub(super) fn log(&self) -> PathBuf {
        self.path().join("log")
    }
}

/// Removes the folders of owners that were killed before they could do it.
///
/// A server that still runs on such a folder ends by itself: it looks for its lock file once a minute. So nothing is
/// signalled by a number that may long belong to somebody else. Best effort: what cannot be removed is left.
fn remove_abandoned(base: &Path, user: &ServerUser) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        if is_ours(&entry.file_name())
            && entry
                .metadata()
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == user.uid())
            && is_abandoned(&entry.path())
        {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(PREFIX.as_bytes())
}

fn is_abandoned(folder: &Path) -> bool {
    File::open(folder.join(OWNER_FILE)).is_ok_and(|owner| owner.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folder_of_a_dead_owner_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let user = ServerUser::Myself;
        let [alive, dead, foreign] =
            ["evenhand-pg-alive", "evenhand-pg-dead", "other"].map(|name| base.path().join(name));
        for folder in [&alive, &dead, &foreign] {
            fs::create_dir(folder).unwrap();
            File::create(folder.join(OWNER_FILE)).unwrap();
        }
        let owner = File::open(alive.join(OWNER_FILE)).unwrap();
        owner.lock().unwrap();

        remove_abandoned(base.path(), &user);

        assert!(alive.is_dir());
        assert!(!dead.exists());
        assert!(foreign.is_dir());
    }
}
