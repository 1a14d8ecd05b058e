// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts of the operating system and the CPU, without policy: every raw system call and every
//! instruction-set detail of the library sits here.

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
