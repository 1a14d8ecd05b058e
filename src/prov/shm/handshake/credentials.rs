// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process at the other end of a control socket, and the check whether its user may connect. Pidfds stand for
//! processes, because a pidfd means the same process in every pid namespace. A pid is used only where the kernel has
//! translated it into this process's namespace.

use crate::config::{self, Users};
use crate::error::{Error, Result, errno};
use crate::prov::shm::wire::address::is_path;
use crate::sys::{process, socket};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Checks that the peer's user may connect by the name `name`; no other check guards the shared memory. Returns the
/// peer's pid in this process's pid namespace; 0: the peer has no pid there.
pub fn check_peer(fd: BorrowedFd<'_>, name: &str) -> Result<i32> {
    let (pid, uid) = socket::peer(fd)?;
    let users = &config::get().users;
    if *users == Users::Path && is_path(name) {
        return Ok(pid);
    }
    let mine = process::euid();
    // The kernel shows all users that this user namespace does not map as one uid (the overflow uid).
    if process::is_shared_uid(uid) {
        if uid == mine && socket::peer_process(fd).is_some_and(|peer| process::may_signal(&peer)) {
            return Ok(pid);
        }
        return Err(Error::new(
            errno::EACCES,
            format!(
                "the peer runs as user {uid}, which stands for all users that this user namespace does not map, and the kernel does not \
                 confirm that it is this process's user (see GDRFAB_SHM_USERS)"
            ),
        ));
    }
    match users {
        _ if uid == mine => Ok(pid),
        Users::These(some) if some.contains(&uid) => Ok(pid),
        _ => Err(Error::new(
            errno::EACCES,
            format!(
                "the peer runs as user {uid}, this process as {mine}; shm connects processes of one user unless GDRFAB_SHM_USERS permits \
                 others"
            ),
        )),
    }
}

/// The pidfds of peers. Connections to one process share one pidfd. The key is the peer's pid or, if the peer has no
/// pid in this namespace, the inode number of the pidfd.
static PIDFDS: Mutex<Option<HashMap<PidfdKey, Weak<OwnedFd>>>> = Mutex::new(None);

#[derive(PartialEq, Eq, Hash)]
enum PidfdKey {
    Pid(i32),
    Inode(u64),
}

/// Longest wait for the lock. In a child of fork(), a thread that exists only in the parent may hold the lock for ever;
/// the child then shares no pidfd.
const PATIENCE: Duration = Duration::from_secs(1);

/// A pidfd of the process at the other end. `None`: the process has ended, or the kernel (before Linux 6.5) gives no
/// pidfd of a socket's peer and the peer has no pid in this namespace.
pub fn process_of(fd: BorrowedFd<'_>, pid: i32) -> Option<Arc<OwnedFd>> {
    let known = (pid > 0).then_some(PidfdKey::Pid(pid));
    if let Some(known) = &known
        && let Some(all) = PIDFDS.try_lock_for(PATIENCE)
        && let Some(same) = all.as_ref().and_then(|all| all.get(known)).and_then(Weak::upgrade)
        // A process keeps its pid until it ends, so a pidfd under this pid whose process lives is the peer's.
        && !process::ended(&same)
    {
        return Some(same);
    }
    let fresh = socket::peer_process(fd).or_else(|| process::open(pid).ok())?;
    let Some(known) = known.or_else(|| process::identity(fresh.as_fd()).map(PidfdKey::Inode)) else { return Some(Arc::new(fresh)) };
    let Some(mut guard) = PIDFDS.try_lock_for(PATIENCE) else { return Some(Arc::new(fresh)) };
    let all = guard.get_or_insert_default();
    if let Some(same) = all.get(&known).and_then(Weak::upgrade).filter(|same| !process::ended(same)) {
        return Some(same);
    }
    all.retain(|_, other| other.strong_count() > 0);
    let fresh = Arc::new(fresh);
    all.insert(known, Arc::downgrade(&fresh));
    Some(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_one_process_share_its_pidfd() {
        let (one, other) = socket::pair().unwrap();
        let (a, b) = (process_of(one.as_fd(), process::pid()).unwrap(), process_of(other.as_fd(), process::pid()).unwrap());
        assert!(Arc::ptr_eq(&a, &b) && !process::ended(&a));
        // With pid 0, as of a peer in another pid namespace, the key is the inode number, where the kernel has one.
        if let Some(unnumbered) = socket::peer_process(one.as_fd())
            && process::identity(unnumbered.as_fd()).is_some()
        {
            let (c, d) = (process_of(one.as_fd(), 0).unwrap(), process_of(other.as_fd(), 0).unwrap());
            assert!(Arc::ptr_eq(&c, &d));
        }
    }
}
