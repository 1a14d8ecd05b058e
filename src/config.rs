// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `GDRFAB_*` environment variables, read once per process and listed by `gdrfab-info -e`. An invalid value is an
//! error of `gdrfab_getinfo()`; calls before `gdrfab_getinfo()` use the default instead.

mod debug;
pub mod faults;
mod goal;
mod kind;
mod names;
mod removed;
mod spelling;
mod table;
mod users;
mod value;
mod variables;

use crate::error::{Error, Result};
use crate::{environment, log};
pub use debug::{Debug, WORDS as DEBUG_WORDS};
pub use goal::Goal;
pub use kind::{Kind, Variable};
pub use names::{RING_MOST, SETS};
use std::ffi::OsStr;
use std::sync::OnceLock;
pub use table::{Config, Hmem, Tcp, VARIABLES, Verbs};
pub use users::Users;
pub use value::{DriverUse, WordSet};

impl Config {
    /// Length in bytes up to which a message travels through the ring. `private`: the receiver cannot map the sender's
    /// memory. Twice as many bytes travel through the ring from such memory, because the other way is a system call
    /// (cma), which takes longer than the copies of some kilobytes into the ring and out of it.
    pub fn ring_max(&self, private: bool) -> usize {
        if private { (2 * self.eager_max).min(RING_MOST) } else { self.eager_max }
    }
}

/// The error of a variable's value, in words that name the variable and the value; `None` if the value is valid.
fn value_error(v: &Variable, raw: &OsStr) -> Option<String> {
    let why = match raw.to_str() {
        Some(text) => v.kind.invalid_reason(text)?,
        None => "it is not UTF-8".to_string(),
    };
    Some(format!("{}={}: {why}", v.name, raw.to_string_lossy()))
}

/// The value of a variable, if it is set to a valid value.
fn text(name: &str) -> Option<String> {
    let raw = environment::get(name)?;
    let known = VARIABLES.iter().find(|v| v.name == name)?;
    if value_error(known, &raw).is_some() { None } else { raw.into_string().ok() }
}

/// Checks that every variable has a valid value, that no variable of an earlier version is set, and that no variable that
/// decides who may connect is mistyped. The error names each wrong variable.
pub fn check() -> Result<()> {
    let values = VARIABLES.iter().filter_map(|v| value_error(v, &environment::get(v.name)?));
    let errors: Vec<String> = values.chain(removed_errors()).chain(spelling_errors()).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::invalid(format!("the environment: {}", errors.join("; ")))) }
}

/// For each variable of an earlier version that is set: the words that name its successor.
fn removed_errors() -> impl Iterator<Item = String> {
    removed::REMOVED.iter().filter(|(name, _)| environment::get(name).is_some()).map(removed::error)
}

/// The errors in the names of variables that are set.
fn spelling_errors() -> impl Iterator<Item = String> {
    let set = |name: &String| environment::get(name).is_some();
    environment::names("GDRFAB").into_iter().filter(set).filter_map(|name| spelling::security_typo(&name))
}

/// Names of variables that are set and begin with `GDRFAB`, but are neither the library's nor a plugin's. Such a name is
/// perhaps mistyped. A name without the underscore after `GDRFAB` is reported only if it resembles a known one.
pub fn unknown() -> Vec<String> {
    let is_reported = |name: &String| (name.starts_with("GDRFAB_") && spelling::is_unknown(name)) || spelling::meant(name).is_some();
    environment::names("GDRFAB").into_iter().filter(is_reported).collect()
}

/// The configuration, read from the environment at first use.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        if let Err(e) = check() {
            log!(Warn, "{e}");
        }
        for name in unknown().into_iter().filter(|name| !removed::is_removed(name)) {
            let meant = spelling::meant(&name).map_or(String::new(), |known| format!("; {known} is"));
            log!(Warn, "{name} is no variable of this library{meant}");
        }
        let config = Config::read(&text);
        // A user may have forgotten that the variable is set.
        if !config.faults.is_empty() {
            let raw = text("GDRFAB_FAULT").unwrap_or_default();
            log!(Warn, "GDRFAB_FAULT={raw}: {} fault(s) happen on purpose", config.faults.len());
        }
        config
    })
}
