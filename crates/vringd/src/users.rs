//! User and group names of the system.

use crate::convert::field;
use control::ApiError;

/// The number of a user given by name or number.
pub(crate) fn user(name: &str) -> Result<u32, ApiError> {
    let found = || uzers::get_user_by_name(name).map(|user| user.uid());
    name.parse().ok().or_else(found).ok_or_else(|| field("socket_owner", format_args!("there is no user `{name}`")))
}

/// The number of a group given by name or number.
pub(crate) fn group(name: &str) -> Result<u32, ApiError> {
    let found = || uzers::get_group_by_name(name).map(|group| group.gid());
    name.parse().ok().or_else(found).ok_or_else(|| field("socket_group", format_args!("there is no group `{name}`")))
}
