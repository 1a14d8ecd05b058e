// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gdrfab: register memory of any kind and move it between processes, from C.
//!
//! The C border is [`capi`]. There, three promises of the C caller become values: handles; the memory that operations
//! name, which is an [`sys::iov::Iov`] below; and calls that do not overlap ([`sync::serial::Promise`]). Making an
//! `Iov` or a `Promise` needs `unsafe`, and code that takes one needs no further promise. Every other `unsafe` says on
//! whose promise it relies: the C caller's, a driver's, or its own caller's. A layer imports only layers that stand
//! above it in this list.

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
