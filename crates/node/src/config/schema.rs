//! The schema of the configuration, derived from the sections: names, types, defaults and descriptions.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::Config;

#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    pub name: String,
    pub text: String,
    /// Its options; for a section with arbitrary names, those of each of its tables.
    pub keys: Vec<Key>,
    /// Accepts arbitrary names.
    pub open: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    pub name: String,
    pub form: Form,
    /// `None` if there is no default.
    pub default: Option<Value>,
    pub text: String,
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `true` or `false`.
    Boolean,
    Number,
    /// A string.
    Text,
    List,
    Table,
}

/// All sections, in the order of [`Config`].
pub fn sections() -> &'static [Section] {
    static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
        let settings = SchemaSettings::draft2020_12().with(|with| with.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<Config>();
        let mut sections = Vec::new();
        for (name, schema) in properties(schema.as_value()) {
            read(name, schema, &mut sections);
        }
        sections
    });
    &SECTIONS
}

pub fn section(name: &str) -> Option<&'static Section> {
    sections().iter().find(|section| section.name == name)
}

/// The option of this full name; for an open section, its type.
pub(super) fn form(path: &str) -> Option<Form> {
    let (name, key) = path.rsplit_once('.')?;
    let section = section(name)?;
    if section.open {
        let tables = section.name == "secrets" || !section.keys.is_empty();
        return Some(if tables { Form::Table } else { Form::Text });
    }
    let key = section.keys.iter().find(|known| known.name == key)?;
    Some(key.form)
}

impl Section {
    /// The environment variable of an option.
    pub fn variable(&self, key: &str) -> String {
        let path = format!("davenport_{}_{key}", self.name).replace('.', "_");
        path.to_uppercase()
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

fn read(name: &str, schema: &Value, sections: &mut Vec<Section>) {
    let is_section = |schema: &Value| schema.get("properties").is_some();
    let tables = schema
        .get("additionalProperties")
        .filter(|tables| is_section(tables));
    let keys = properties(tables.unwrap_or(schema)).filter(|(_, schema)| !is_section(schema));
    sections.push(Section {
        text: text(schema),
        open: !is_section(schema),
        keys: keys
            .map(|(name, schema)| Key {
                name: name.clone(),
                form: form_of(schema),
                default: schema
                    .get("default")
                    .filter(|value| !value.is_null())
                    .cloned(),
                text: text(schema),
            })
            .collect(),
        name: name.to_owned(),
    });
    for (inner, schema) in properties(schema).filter(|(_, schema)| is_section(schema)) {
        read(&format!("{name}.{inner}"), schema, sections);
    }
}

fn text(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    text.unwrap_or_default().replace('\n', " ")
}

fn form_of(schema: &Value) -> Form {
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        kind => kind.and_then(Value::as_str),
    };
    match kind {
        Some("boolean") => Form::Boolean,
        Some("integer" | "number") => Form::Number,
        Some("array") => Form::List,
        Some("object") => Form::Table,
        _ => Form::Text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_option_is_described_and_has_a_variable_of_its_own() {
        let mut variables = BTreeSet::new();
        for section in sections() {
            assert!(!section.text.is_empty(), "[{}]", section.name);
            for key in &section.keys {
                assert!(!key.text.is_empty(), "[{}] {}", section.name, key.name);
                let variable = section.variable(&key.name);
                assert!(
                    variables.insert(variable.clone()),
                    "{variable} is defined twice"
                );
            }
        }
        assert!(variables.contains("DAVENPORT_REPLICATOR_MAX_JOBS"));
        assert!(variables.contains("DAVENPORT_NETWORK_EGRESS_ALLOW"));
    }

    #[test]
    fn forms_and_defaults_are_those_of_the_sections() {
        let key = |path: &str| {
            let (name, key) = path.rsplit_once('.').unwrap();
            let keys = &section(name).unwrap().keys;
            keys.iter().find(|known| known.name == key).unwrap()
        };
        assert_eq!(key("replicator.max_jobs").form, Form::Number);
        assert_eq!(key("replicator.max_jobs").default, Some(500.into()));
        assert_eq!(key("replicator.use_checkpoints").form, Form::Boolean);
        assert_eq!(key("network.egress.deny").form, Form::List);
        assert_eq!(key("network.cert_file").form, Form::Text);
        assert_eq!(key("network.cert_file").default, None);
        assert_eq!(key("store.durability").default, Some("sync".into()));
        assert_eq!(form("admins.anna"), Some(Form::Text));
        assert_eq!(form("secrets.there"), Some(Form::Table));
        assert_eq!(form("replicator.max_job"), None);
    }
}
