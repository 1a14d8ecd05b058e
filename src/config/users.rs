// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The value of `GDRFAB_SHM_USERS`.

/// The users whose processes may connect over shm.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Users {
    /// This process's user.
    #[default]
    Same,
    /// This process's user and the listed users.
    These(Vec<u32>),
    /// Every user who may open the socket, if the socket has a path; else this process's user.
    Path,
}

impl Users {
    /// The users in words, for `gdrfab-info`.
    pub fn words(&self) -> String {
        match self {
            Users::Same => "this process's user connects".into(),
            Users::These(some) => format!("this process's user and {some:?} connect"),
            Users::Path => "whoever may open the path of a socket connects; by other names this process's user".into(),
        }
    }

    /// The users that a value names; `None`: the value is invalid.
    pub fn parse(text: &str) -> Option<Users> {
        let number = |word: &str| word.parse().ok().filter(|_| word.bytes().all(|b| b.is_ascii_digit()));
        match text {
            "same" => Some(Users::Same),
            "path" => Some(Users::Path),
            list => list.split(',').map(number).collect::<Option<_>>().map(Users::These),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_words_or_numbers() {
        assert_eq!(Users::parse("0,1000"), Some(Users::These(vec![0, 1000])));
        assert_eq!((Users::parse("path"), Users::parse("same")), (Some(Users::Path), Some(Users::Same)));
        for bad in ["", "0,", "0, 1", "same,0", "root", "4294967296", "-1"] {
            assert_eq!(Users::parse(bad), None, "{bad:?}");
        }
    }
}
