//! User and group names of the system.

use crate::failure::field;
use control::ApiError;
use sandbox::Identity;

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

/// A user to become, given as `USER` or `USER:GROUP`, names or numbers, with the groups that the system's lists give the user.
pub(crate) fn identity(text: &str) -> Result<Identity, String> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    // The highest number means nobody in particular to the kernel.
    let number = |text: &str| text.parse().ok().filter(|number| *number != u32::MAX);
    let known = number(user).map_or_else(|| uzers::get_user_by_name(user), uzers::get_user_by_uid);
    let uid =
        number(user).or(known.as_ref().map(uzers::User::uid)).ok_or_else(|| format!("there is no user `{user}`"))?;
    let gid = match group {
        Some(group) => number(group)
            .or_else(|| uzers::get_group_by_name(group).map(|group| group.gid()))
            .ok_or_else(|| format!("there is no group `{group}`"))?,
        None => known
            .as_ref()
            .map(uzers::User::primary_group_id)
            .ok_or_else(|| format!("user {uid} is on no list: give the group as well, as in {uid}:GROUP"))?,
    };
    let named = known.as_ref().and_then(|known| uzers::get_user_groups(known.name(), gid)).unwrap_or_default();
    let mut groups: Vec<u32> = named.iter().map(uzers::Group::gid).chain([gid]).collect();
    groups.sort_unstable();
    groups.dedup();
    Ok(Identity { uid, gid, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_names_or_numbers() {
        let root = identity("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(identity("0:0").unwrap(), root);
        let other = identity("4000000000:4000000001").unwrap();
        assert_eq!(other, Identity { uid: 4_000_000_000, gid: 4_000_000_001, groups: vec![4_000_000_001] });
        for (text, word) in [
            ("nobody-of-this-name", "no user `nobody-of-this-name`"),
            ("root:none-of-this-name", "no group `none-of-this-name`"),
            ("4000000000", "as in 4000000000:GROUP"),
            ("4294967295:0", "no user"),
            (":0", "no user ``"),
        ] {
            let line = identity(text).unwrap_err();
            assert!(line.contains(word), "{text}: {line}");
        }
    }
}
