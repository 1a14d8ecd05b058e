// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AF_UNIX SOCK_SEQPACKET sockets that have a path: processes find each other by a directory that they share, whatever network
//! namespace each is in. Nothing is followed or removed that is not this user's own socket.

use super::process;
use super::socket::{Connect, fresh};
use crate::error::{Error, Result, errno};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::net::SocketAddrUnix;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long others may hold the lock of a directory.
const PATIENCE: Duration = Duration::from_secs(1);

/// A listener's path, which goes with it.
#[derive(Debug)]
pub struct Place {
    path: String,
    /// Device and inode of the socket that was put there.
    is: (u64, u64),
    /// Who put it there: a child of fork() has a copy of this.
    by: i32,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.by != process::pid() {
            return;
        }
        // Without the lock, somebody may put his own there between the look and the removal: then it stays, as that of a
        // killed process does.
        let Ok(_lock) = lock(&self.path) else { return };
        if look(&self.path).is_ok_and(|st| st.is_some_and(|st| identity(&st) == self.is)) {
            let _ = rustix::fs::unlink(self.path.as_str());
        }
    }
}

fn identity(st: &Stat) -> (u64, u64) {
    (st.st_dev, st.st_ino)
}

fn directory(path: &str) -> &Path {
    Path::new(path).parent().unwrap_or(Path::new("/"))
}

/// Device and inode of a directory.
pub fn directory_id(directory: &str) -> Result<(u64, u64)> {
    let st = rustix::fs::stat(directory).map_err(|e| Error::os(format_args!("looking at the directory {directory}"), e))?;
    Ok(identity(&st))
}

/// Whether any user may put something into the directory of `path`.
pub fn is_open_to_all(path: &str) -> Result<bool> {
    let of = directory(path);
    let st = rustix::fs::stat(of).map_err(|e| Error::os(format_args!("looking at the directory {}", of.display()), e))?;
    Ok(st.st_mode & 0o002 != 0)
}

/// What lies at a path, itself and not where it leads.
fn look(path: &str) -> Result<Option<Stat>> {
    match rustix::fs::lstat(path) {
        Ok(st) => Ok(Some(st)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(Error::os(format_args!("looking at {path}"), e)),
    }
}

/// Keeps other listeners of this library from the directory of `path` until it is dropped.
fn lock(path: &str) -> Result<OwnedFd> {
    let of = directory(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open(of, flags, Mode::empty()).map_err(|e| Error::os(format_args!("opening the directory {}", of.display()), e))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(Error::os(format_args!("locking the directory {}", of.display()), e)),
        }
    }
}

fn address(path: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|e| Error::os(format_args!("forming the local address {path}"), e))
}

/// Makes room for a listener, under the directory's lock: removes this user's socket if nobody listens on it.
fn clear(path: &str) -> Result<()> {
    let taken = |what: &str| Err(Error::new(errno::EADDRINUSE, format!("listening on {path}: {what}; it is left alone")));
    let Some(st) = look(path)? else { return Ok(()) };
    match FileType::from_raw_mode(st.st_mode) {
        FileType::Socket => {}
        FileType::Symlink => return taken("a symbolic link is there"),
        _ => return taken("a file that is no socket is there"),
    }
    if st.st_uid != process::euid() {
        return taken(&format!("a socket of user {} is there", st.st_uid));
    }
    match rustix::net::connect(fresh()?, &address(path)?) {
        Err(rustix::io::Errno::CONNREFUSED) => {
            rustix::fs::unlink(path).map_err(|e| Error::os(format_args!("removing {path}, whose listener has ended"), e))
        }
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            Err(Error::new(errno::EADDRINUSE, format!("listening on {path}: somebody listens there")))
        }
        Err(e) => taken(&format!("a socket of another kind is there ({e})")),
    }
}

/// A non-blocking listener at `path`, which other users may open if `open`; the socket of a listener of this user that has ended makes room.
pub fn listen(path: &str, backlog: i32, open: bool) -> Result<(OwnedFd, Place)> {
    let doing = || format!("listening on {path}");
    let mode = Mode::from_raw_mode(if open { 0o666 } else { 0o600 });
    let _lock = lock(path).map_err(|e| e.context(doing()))?;
    clear(path)?;
    let fd = fresh()?;
    // The file gets this mode from its beginning, less what the process's mask takes away.
    rustix::fs::fchmod(&fd, mode).map_err(|e| Error::os(doing(), e))?;
    rustix::net::bind(&fd, &address(path)?).map_err(|e| Error::os(doing(), e))?;
    let st = rustix::fs::lstat(path).map_err(|e| Error::os(doing(), e))?;
    let place = Place { path: path.to_string(), is: identity(&st), by: process::pid() };
    if open {
        rustix::fs::chmodat(rustix::fs::CWD, path, mode, AtFlags::empty()).map_err(|e| Error::os(doing(), e))?;
    }
    rustix::net::listen(&fd, backlog).map_err(|e| Error::os(doing(), e))?;
    Ok((fd, place))
}

/// Connects to the listener at `path`, itself and not where it leads.
pub fn connect(path: &str) -> Result<Connect> {
    let refused = |why: &str| Err(Error::new(errno::ECONNREFUSED, format!("connecting to {path}: {why}")));
    let file = match rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return refused("nothing is there (in this mount namespace)"),
        Err(e) => return Err(Error::os(format_args!("connecting to {path}"), e)),
    };
    let st = rustix::fs::fstat(&file).map_err(|e| Error::os(format_args!("connecting to {path}"), e))?;
    let no_socket = |what: &str| Err(Error::new(errno::ENOTSOCK, format!("connecting to {path}: {what} is there, and no socket")));
    match FileType::from_raw_mode(st.st_mode) {
        FileType::Socket => {}
        FileType::Symlink => return no_socket("a symbolic link"),
        _ => return no_socket("a file"),
    }
    let fd = fresh()?;
    // What was looked at, whatever is at the path by now.
    match rustix::net::connect(&fd, &address(&format!("/proc/self/fd/{}", file.as_raw_fd()))?) {
        Ok(()) => Ok(Connect::Done(fd)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Connect::Busy),
        Err(rustix::io::Errno::CONNREFUSED) => refused("the socket's listener has ended"),
        Err(rustix::io::Errno::NOENT) => Err(Error::new(errno::ENOENT, format!("connecting to {path}: /proc is not mounted"))),
        Err(e) => Err(Error::os(format_args!("connecting to {path}, a socket of user {} and mode {:o}", st.st_uid, st.st_mode & 0o777), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> String {
        let path = std::env::temp_dir().join(format!("gdrfab-{name}-{}", process::pid()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path.to_str().unwrap().to_string()
    }

    #[test]
    fn a_listener_s_path_goes_with_it_and_a_dead_one_s_makes_room() {
        let folder = folder("place");
        let path = format!("{folder}/s");
        let (fd, place) = listen(&path, 1, false).unwrap();
        assert!(matches!(connect(&path), Ok(Connect::Done(_))));
        assert!(listen(&path, 1, false).is_err_and(|e| e.errno == errno::EADDRINUSE && e.words.contains("somebody listens")));
        // As if it had been killed.
        std::mem::forget(place);
        drop(fd);
        assert!(connect(&path).is_err_and(|e| e.errno == errno::ECONNREFUSED && e.words.contains("has ended")));
        let (fd, place) = listen(&path, 1, true).unwrap();
        assert_eq!(rustix::fs::stat(path.as_str()).unwrap().st_mode & 0o777, 0o666);
        // Another one's, put there meanwhile, is not removed.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"mine").unwrap();
        drop((fd, place));
        assert!(std::fs::read(&path).is_ok_and(|bytes| bytes == b"mine"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_neither_followed_nor_removed() {
        let folder = folder("stray");
        let (real, link, file) = (format!("{folder}/real"), format!("{folder}/link"), format!("{folder}/file"));
        let (_fd, _place) = listen(&real, 1, false).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::fs::write(&file, b"x").unwrap();
        for path in [&link, &file] {
            assert!(connect(path).is_err_and(|e| e.errno == errno::ENOTSOCK), "{path}");
            assert!(listen(path, 1, false).is_err_and(|e| e.errno == errno::EADDRINUSE && e.words.contains("left alone")), "{path}");
            assert!(std::fs::symlink_metadata(path).is_ok());
        }
        assert!(connect(&format!("{folder}/none")).is_err_and(|e| e.errno == errno::ECONNREFUSED));
        assert!(listen(&format!("{folder}/none/s"), 1, false).is_err_and(|e| e.errno == errno::ENOENT));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_that_is_not_given_back_is_an_error() {
        let folder = folder("lock");
        let path = format!("{folder}/s");
        let held = lock(&path).unwrap();
        assert!(listen(&path, 1, false).is_err_and(|e| e.errno == errno::EAGAIN && e.words.contains("locking")));
        drop(held);
        drop(listen(&path, 1, false).unwrap());
        assert!(!std::fs::exists(&path).unwrap());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
