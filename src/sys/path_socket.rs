// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AF_UNIX SOCK_SEQPACKET sockets with a path in the file system. Processes that share a directory find each other
//! there, whatever network namespaces they are in. Symbolic links are not followed, and only this user's own dead
//! sockets are removed.

use super::socket::{Connect, fresh};
use super::{fd, process};
use crate::error::{Error, Result, errno};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit for the lock of a directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Dead sockets that one `listen` removes before it gives up.
const MAX_REMOVALS: usize = 20;

/// A listener's path. The socket file is removed when this is dropped.
#[derive(Debug)]
pub struct BoundPath {
    path: String,
    /// Device and inode of the socket file.
    identity: (u64, u64),
    /// The process that made the socket; a child of fork() has a copy of this value and must not remove the file.
    owner_pid: i32,
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        if self.owner_pid != process::pid() {
            return;
        }
        // If the socket cannot be removed it stays, like the socket of a killed process.
        let _ = DirEntry::of(&self.path).and_then(|entry| {
            let _lock = entry.lock();
            if entry.look()?.is_some_and(|st| identity(&st) == self.identity) {
                PrivateDir::new(entry.dir.as_fd())?.remove_socket(&entry, self.identity)?;
            }
            Ok(())
        });
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
    let st = rustix::fs::stat(directory).map_err(|e| Error::os(format_args!("examining the directory {directory}"), e))?;
    Ok(identity(&st))
}

/// True if any user may create files in the directory of `path`.
pub fn is_open_to_all(path: &str) -> Result<bool> {
    let of = directory(path);
    let st = rustix::fs::stat(of).map_err(|e| Error::os(format_args!("examining the directory {}", of.display()), e))?;
    Ok(st.st_mode & 0o002 != 0)
}

fn open_at(at: BorrowedFd<'_>, name: &OsStr, how: OFlags) -> std::result::Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, how | OFlags::CLOEXEC, Mode::empty()).and_then(fd::own)
}

fn open_directory(at: BorrowedFd<'_>, name: &OsStr, how: OFlags, doing: impl Display) -> Result<OwnedFd> {
    open_at(at, name, how | OFlags::DIRECTORY).map_err(|e| Error::os(doing, e))
}

/// A name in a directory, whether or not a file has it.
struct DirEntry {
    dir: OwnedFd,
    name: OsString,
    path: String,
}

impl DirEntry {
    fn of(path: &str) -> Result<DirEntry> {
        let of = directory(path);
        let dir = open_directory(CWD, of.as_os_str(), OFlags::PATH, format_args!("opening the directory {}", of.display()))?;
        let name = Path::new(path).file_name().ok_or_else(|| Error::invalid(format!("addr: {path} names no file")))?;
        Ok(DirEntry { dir, name: name.to_owned(), path: path.to_string() })
    }

    /// The file that has the name. A symbolic link is not followed.
    fn look(&self) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(st) => Ok(Some(st)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(Error::os(format_args!("examining {}", self.path), e)),
        }
    }

    /// Locks the directory, so that two listeners do not remove the same dead socket. Other users of the directory can
    /// hold the lock for ever, so nothing depends on getting it.
    fn lock(&self) -> Option<OwnedFd> {
        let dir = open_directory(self.dir.as_fd(), OsStr::new("."), OFlags::RDONLY, "locking a directory").ok()?;
        let until = Instant::now() + LOCK_TIMEOUT;
        while rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(dir)
    }
}

/// A temporary directory beside a socket's path that only this user may enter; removed when dropped. All steps that use
/// file names happen in it, where no other user can exchange a file.
struct PrivateDir<'a> {
    of: BorrowedFd<'a>,
    name: OsString,
    dir: OwnedFd,
}

impl<'a> PrivateDir<'a> {
    const SOCKET: &'static str = "socket";
    const OLD: &'static str = "old";

    fn new(of: BorrowedFd<'a>) -> Result<PrivateDir<'a>> {
        const DOING: &str = "creating a directory for a socket";
        let mut random = [0; 8];
        process::random(&mut random)?;
        let name = OsString::from(format!(".gdrfab-{:016x}", u64::from_ne_bytes(random)));
        rustix::fs::mkdirat(of, &name, Mode::RWXU).map_err(|e| Error::os(DOING, e))?;
        let private_dir = PrivateDir { of, dir: open_directory(of, &name, OFlags::PATH | OFlags::NOFOLLOW, DOING)?, name };
        let st = rustix::fs::fstat(&private_dir.dir).map_err(|e| Error::os(DOING, e))?;
        // Another member of the directory's group may have replaced it by a directory of its own.
        if st.st_uid != process::euid() || st.st_mode & 0o077 != 0 {
            return Err(Error::fixed(errno::EACCES, "another user replaced the directory that was created for a socket"));
        }
        Ok(private_dir)
    }

    /// The path of `name` in this directory. The path leads through the open descriptor, so it reaches this very
    /// directory even if the directory's name now belongs to another.
    fn path_of(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd())
    }

    fn identity_of(&self, name: &str) -> Result<(u64, u64)> {
        let st = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        st.map(|st| identity(&st)).map_err(|e| Error::os("examining a socket", e))
    }

    /// Moves the socket to its path. False: the path is taken.
    fn move_into_place(&self, entry: &DirEntry) -> Result<bool> {
        let moved = match rustix::fs::renameat_with(&self.dir, Self::SOCKET, &entry.dir, &entry.name, RenameFlags::NOREPLACE) {
            // Some file systems only support a hard link.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::linkat(&self.dir, Self::SOCKET, &entry.dir, &entry.name, AtFlags::empty()),
            moved => moved,
        };
        match moved {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(Error::os(format_args!("creating a socket at {}", entry.path), e)),
        }
    }

    /// Removes the socket with identity `expected` from a path. Another file that was put there meanwhile is moved
    /// back.
    fn remove_socket(&self, entry: &DirEntry, expected: (u64, u64)) -> Result<()> {
        match rustix::fs::renameat(&entry.dir, &entry.name, &self.dir, Self::OLD) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(Error::os(format_args!("removing {}, whose listener has ended", entry.path), e)),
        }
        if self.identity_of(Self::OLD)? == expected {
            let _ = rustix::fs::unlinkat(&self.dir, Self::OLD, AtFlags::empty());
            return Ok(());
        }
        rustix::fs::renameat_with(&self.dir, Self::OLD, &entry.dir, &entry.name, RenameFlags::NOREPLACE)
            .map_err(|e| Error::os(format_args!("restoring the socket of another listener at {}", entry.path), e))
    }
}

impl Drop for PrivateDir<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, Self::SOCKET, AtFlags::empty());
        // rmdir removes only an empty directory.
        let _ = rustix::fs::unlinkat(self.of, &self.name, AtFlags::REMOVEDIR);
    }
}

fn address(path: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|e| Error::os(format_args!("forming the local address {path}"), e))
}

/// The address of an open file. Unlike the file at a path, nobody can exchange an open file.
fn address_of(file: &OwnedFd) -> Result<SocketAddrUnix> {
    address(&format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Makes a path free for a listener: removes the socket there if it is this user's and no one listens on it.
fn remove_dead_socket(entry: &DirEntry, private_dir: &PrivateDir) -> Result<()> {
    let path = &entry.path;
    let taken = |what: &str| Err(Error::new(errno::EADDRINUSE, format!("listening on {path}: {what}; remove it or choose another path")));
    let file = match open_at(entry.dir.as_fd(), &entry.name, OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(Error::os(format_args!("examining {path}"), e)),
    };
    let st = rustix::fs::fstat(&file).map_err(|e| Error::os(format_args!("examining {path}"), e))?;
    match FileType::from_raw_mode(st.st_mode) {
        FileType::Socket => {}
        FileType::Symlink => return taken("a symbolic link exists there"),
        _ => return taken("a file exists there that is not a socket"),
    }
    if st.st_uid != process::euid() {
        return taken(&format!("a socket of user {} exists there", st.st_uid));
    }
    match rustix::net::connect(fresh()?, &address_of(&file)?) {
        Err(Errno::CONNREFUSED) => private_dir.remove_socket(entry, identity(&st)),
        Ok(()) | Err(Errno::AGAIN) => Err(Error::new(errno::EADDRINUSE, format!("listening on {path}: another listener uses this path"))),
        Err(e) => taken(&format!("a socket of another kind exists there ({e})")),
    }
}

/// A non-blocking listener at `path`, which other users may connect to if `open`. A socket of this user whose listener
/// has ended is replaced. The socket is created, given its mode and listened on in a private directory, and then moved
/// to its path.
pub fn listen(path: &str, backlog: i32, open: bool) -> Result<(OwnedFd, BoundPath)> {
    let doing = |e: Errno| Error::os(format_args!("listening on {path}"), e);
    // Fails early if callers could not use the path as an address.
    address(path)?;
    let entry = DirEntry::of(path).map_err(|e| e.context(format_args!("listening on {path}")))?;
    let _lock = entry.lock();
    let private_dir = PrivateDir::new(entry.dir.as_fd()).map_err(|e| e.context(format_args!("listening on {path}")))?;
    let fd = fresh()?;
    rustix::net::bind(&fd, &address(&private_dir.path_of(PrivateDir::SOCKET))?).map_err(doing)?;
    let mode = Mode::from_raw_mode(if open { 0o666 } else { 0o600 });
    rustix::fs::chmodat(&private_dir.dir, PrivateDir::SOCKET, mode, AtFlags::empty()).map_err(doing)?;
    rustix::net::listen(&fd, backlog).map_err(doing)?;
    let is = private_dir.identity_of(PrivateDir::SOCKET)?;
    for _ in 0..MAX_REMOVALS {
        if private_dir.move_into_place(&entry)? {
            return Ok((fd, BoundPath { path: path.to_string(), identity: is, owner_pid: process::pid() }));
        }
        remove_dead_socket(&entry, &private_dir)?;
    }
    Err(Error::new(errno::EADDRINUSE, format!("listening on {path}: other processes keep creating sockets there")))
}

/// Connects to the listener at `path`. A symbolic link is not followed.
pub fn connect(path: &str) -> Result<Connect> {
    let refused = |why: &str| Err(Error::new(errno::ECONNREFUSED, format!("connecting to {path}: {why}")));
    let file = match open_at(CWD, OsStr::new(path), OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return refused("the path does not exist (in this mount namespace)"),
        Err(e) => return Err(Error::os(format_args!("connecting to {path}"), e)),
    };
    let st = rustix::fs::fstat(&file).map_err(|e| Error::os(format_args!("connecting to {path}"), e))?;
    let no_socket = |what: &str| Err(Error::new(errno::ENOTSOCK, format!("connecting to {path}: this is {what} and not a socket")));
    match FileType::from_raw_mode(st.st_mode) {
        FileType::Socket => {}
        FileType::Symlink => return no_socket("a symbolic link"),
        _ => return no_socket("a file"),
    }
    let fd = fresh()?;
    // Connects to the file that was examined, whatever is at the path by now.
    match rustix::net::connect(&fd, &address_of(&file)?) {
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
        assert!(listen(&path, 1, false).is_err_and(|e| e.errno == errno::EADDRINUSE && e.words.contains("another listener")));
        // As if the listener had been killed.
        std::mem::forget(place);
        drop(fd);
        assert!(connect(&path).is_err_and(|e| e.errno == errno::ECONNREFUSED && e.words.contains("has ended")));
        let (fd, place) = listen(&path, 1, true).unwrap();
        assert_eq!(rustix::fs::stat(path.as_str()).unwrap().st_mode & 0o777, 0o666);
        // A file of another owner that appeared meanwhile is not removed.
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
            assert!(
                listen(path, 1, false).is_err_and(|e| e.errno == errno::EADDRINUSE && e.words.contains("choose another path")),
                "{path}"
            );
            assert!(std::fs::symlink_metadata(path).is_ok());
        }
        assert!(connect(&format!("{folder}/none")).is_err_and(|e| e.errno == errno::ECONNREFUSED));
        assert!(listen(&format!("{folder}/none/s"), 1, false).is_err_and(|e| e.errno == errno::ENOENT));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_that_is_not_given_back_keeps_nobody_out() {
        let folder = folder("lock");
        let path = format!("{folder}/s");
        let _held = DirEntry::of(&path).unwrap().lock().unwrap();
        drop(listen(&path, 1, false).unwrap());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_another_listener_has_put_there_goes_back() {
        let folder = folder("back");
        let path = format!("{folder}/s");
        let (_fd, place) = listen(&path, 1, false).unwrap();
        let entry = DirEntry::of(&path).unwrap();
        PrivateDir::new(entry.dir.as_fd()).unwrap().remove_socket(&entry, (0, 0)).unwrap();
        assert_eq!(identity(&entry.look().unwrap().unwrap()), place.identity);
        assert!(matches!(connect(&path), Ok(Connect::Done(_))));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        drop(place);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
