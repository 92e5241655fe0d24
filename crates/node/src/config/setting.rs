//! Single options, for tools.

use super::schema;

/// Whether there is an option of this full name.
pub(crate) fn exists(path: &str) -> bool {
    schema::form(path).is_some()
}

/// The value of an option that is given as text, or what is wrong with it.
pub(crate) fn parse(path: &str, text: &str) -> Result<toml::Value, String> {
    let form = schema::form(path).ok_or("is not an option")?;
    let setting = super::Setting {
        path: path.to_owned(),
        value: super::value(form, text)?,
        origin: super::Origin::Default,
    };
    super::alone(&setting)?;
    Ok(setting.value)
}
