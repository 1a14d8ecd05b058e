// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a connected socket is set.

use crate::config;
use crate::error::Result;
use crate::sys::tcp;
use std::os::fd::BorrowedFd;

/// Congestion control of a connection within one host, which has no path to be careful with: every kernel has it, and it
/// paces nothing.
const LOCAL_CONGESTION: &str = "reno";

/// A peer whose host dies is noticed, while its answer is awaited too: a call may have no limit.
pub fn keep_alive(socket: BorrowedFd<'_>) -> Result<()> {
    match config::get().tcp.timeout_ms {
        0 => Ok(()),
        ms => tcp::set_keep_alive(socket, ms),
    }
}

/// Makes a connected socket what a connection's should be.
pub fn tune(socket: BorrowedFd<'_>) -> Result<()> {
    let config = &config::get().tcp;
    let (local, peer) = (tcp::local(socket)?, tcp::peer(socket)?);
    tcp::set_no_delay(socket)?;
    keep_alive(socket)?;
    if config.buffer > 0 {
        tcp::set_buffers(socket, config.buffer)?;
    }
    let algorithm = config.congestion.as_deref().or((local.ip() == peer.ip()).then_some(LOCAL_CONGESTION));
    if let Some(Err(e)) = algorithm.map(|name| tcp::set_congestion(socket, name)) {
        crate::log!(Info, "{e}; the host's choice stays");
    }
    Ok(())
}
