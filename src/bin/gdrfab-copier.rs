// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that copies device memory for another one, which starts it (`src/hmem/copier`): its standard input is their
//! socket. It ends with that process.

use gdrfab::hmem::copier;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

/// Leaves everything behind that was inherited and is not meant for this process.
fn settle() {
    // SAFETY: system calls on this process's own descriptors and threads; nothing here uses those above standard error, and
    // `all` is as large as is said.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        // Whoever is bound to one CPU does not want to share it with this one.
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut all));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all);
    }
    // A directory that somebody may want to unmount is not kept.
    let _ = std::env::set_current_dir("/");
}

fn main() -> ExitCode {
    let is_socket = rustix::net::sockopt::socket_type(std::io::stdin()).is_ok();
    if !is_socket || std::env::args_os().len() > 1 {
        println!(
            "gdrfab-copier {}: libgdrfab starts this program where endpoints may not call a device driver (GDRFAB_OPT_DRIVER_CALLS)",
            env!("CARGO_PKG_VERSION")
        );
        return ExitCode::from(2);
    }
    // The starter waits for its child, and must not have one that it does not know.
    // SAFETY: there is one thread.
    if unsafe { libc::fork() } != 0 {
        return ExitCode::SUCCESS;
    }
    settle();
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    // The end of the connection must be seen, so this one is the last descriptor of it.
    // SAFETY: nobody reads standard input any more.
    drop(unsafe { OwnedFd::from_raw_fd(0) });
    match copier::serve(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gdrfab-copier: {e}");
            ExitCode::FAILURE
        }
    }
}
