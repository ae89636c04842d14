//! Values of flags that name something of the program.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};

use dltrain::model;

/// The name of a network, of which shells know the list, or one by its numbers, or an ONNX file.
#[derive(Clone)]
pub struct NetworkName;

impl TypedValueParser for NetworkName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> std::result::Result<String, clap::Error> {
        match value.to_str().filter(|text| model::is_file(text) || model::is_by_numbers(text)) {
            Some(other) => Ok(other.into()),
            None => PossibleValuesParser::new(model::names()).parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(model::names().into_iter().map(PossibleValue::new)))
    }
}
