// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads of the library. None takes a signal of the program's: a program that reads SIGTERM from a signalfd, or has a
//! handler end a wait, gets the signal on a thread of its own.

use crate::signals;
use std::io::Result;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread.
pub fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    signals::blocked(|| Builder::new().name(name.into()).spawn(f))
}

/// Starts a thread that may borrow what outlives `scope`.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    name: &str,
    scope: &'scope Scope<'scope, '_>,
    f: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    signals::blocked(|| Builder::new().name(name.into()).spawn_scoped(scope, f))
}
