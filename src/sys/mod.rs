// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operating system and the CPU, without policy: every raw system call and every detail of an instruction set is
//! here.
//!
//! Files by subject: memory (`mem.rs`, `iov.rs`, `copy.rs`, `usercopy.rs`, `atomics.rs`, `isolated.rs`), memory of
//! other processes (`space/`), sockets (`socket.rs`, `path_socket.rs`, `tcp.rs`, `stream.rs`, `health.rs`), waiting
//! (`epoll.rs`, `cancel.rs`), threads and processes (`thread.rs`, `thread_end.rs`, `workqueue.rs`, `process.rs`,
//! `fork.rs`), descriptors (`fd.rs`, `discard.rs`), libraries (`dl.rs`) and time (`time.rs`).

pub mod atomics;
pub mod cancel;
pub mod copy;
pub mod discard;
pub mod dl;
pub mod epoll;
pub mod fd;
pub mod fork;
pub mod health;
pub mod iov;
pub mod isolated;
pub mod mem;
pub mod path_socket;
pub mod process;
pub mod socket;
pub mod space;
pub mod stream;
pub mod tcp;
pub mod thread;
mod thread_end;
pub mod time;
pub mod usercopy;
pub mod workqueue;
