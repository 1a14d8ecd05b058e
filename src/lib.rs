// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gdrfab: register memory of any kind and move it between processes, from C.
//!
//! The C interface is [`capi`]. There, three promises of the C caller become values: that a handle is live; that an
//! operation's memory may be accessed, which an [`sys::iov::Iov`] stands for; and that calls do not overlap, which a
//! [`sync::serial::Promise`] stands for. Making an `Iov` or a `Promise` needs `unsafe`, and code that takes one needs
//! no further promise. Every other `unsafe` names the promise on which it relies: the C caller's, a driver's, or its
//! own caller's. A layer imports only itself and the layers before it in this order, which `tests/layering.rs` checks:
//! error, reserve, fallible, environment, signals, log, guard, config, sys, sync, hmem, mr, prov, rdm, fabric, capi.

pub mod environment;
pub mod error;
pub mod fallible;
pub mod guard;
pub mod log;
pub mod reserve;
pub mod signals;

pub mod config;
pub mod hmem;
pub mod mr;
pub mod prov;
pub mod rdm;

pub mod fabric;

pub mod capi;
pub mod sync;
pub mod sys;
