//! Tests of the queue's correctness: its rules written a second time, random scripts and a fleet
//! simulation that compare the queue with them, races, golden scripts, and the bugs that each must
//! find. Only [`planted`] is compiled outside of tests, and costs nothing there.

#[cfg(test)]
mod classes;
#[cfg(test)]
mod conflicts;
#[cfg(test)]
mod distribution;
#[cfg(test)]
mod full;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod geometry;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod log;
#[cfg(test)]
mod mistake;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod moves;
pub(crate) mod planted;
#[cfg(test)]
mod races;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tenants;
