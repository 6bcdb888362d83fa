//! Shuffled decks of recipes, so that all are equally frequent, and the sequences made of them.

use super::{Gen, Recipe, Selection, chaos, slow};
use crate::drift;
use crate::unit::{Step, Unit, Wire};
use fabcache_testbed::random::SplitMix64;

/// Commands to be sent in this order.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// The number of the sequence.
    pub number: u64,
    /// The commands.
    pub steps: Vec<Step>,
}

/// Generates sequences.
pub struct Generator {
    rng: SplitMix64,
    selection: Selection,
    aimed: Vec<Deck>,
    blind: Vec<Deck>,
    drifts: Deck,
    made: u64,
}

struct Deck {
    recipes: Vec<Recipe>,
    left: Vec<Recipe>,
    dealt: usize,
}

impl Deck {
    fn new(recipes: Vec<Recipe>) -> Self {
        Self { recipes, left: Vec::new(), dealt: 0 }
    }

    fn deal(&mut self, rng: &mut SplitMix64) -> Recipe {
        if self.left.is_empty() {
            self.left.clone_from(&self.recipes);
            rng.shuffle(&mut self.left);
        }
        self.dealt += 1;
        self.left.pop().expect("a deck has cards")
    }

    /// Returns how often the deck was dealt.
    fn rounds(&self) -> f64 {
        self.dealt as f64 / self.recipes.len() as f64
    }
}

impl Generator {
    /// Returns a generator that makes the same sequences for the same seed and selection.
    pub fn new(seed: u64, selection: Selection) -> Self {
        let wires: &[Wire] = match selection {
            Selection::Text | Selection::Meta => &[Wire::Ascii],
            Selection::Binary => &[Wire::Binary],
            Selection::All => &[Wire::Ascii, Wire::Binary],
        };
        let drifts = Recipe::all(Wire::Ascii, known_difference, drift::TABLE.len()).collect();
        Self {
            rng: SplitMix64::new(seed),
            selection,
            aimed: wires.iter().map(|&wire| Deck::new(chaos::aimed(wire, selection))).collect(),
            blind: wires.iter().map(|&wire| Deck::new(chaos::recipes(wire))).collect(),
            drifts: Deck::new(drifts),
            made: 0,
        }
    }

    /// Returns all known differences, once each.
    pub fn drift_sequences(&mut self) -> Vec<Sequence> {
        let all = 0..drift::TABLE.len();
        all.map(|entry| {
            let mut g = Gen::new(self.rng.split());
            known_difference(&mut g, entry);
            self.sequence(g)
        })
        .collect()
    }

    /// Returns the sequences that let time pass.
    pub fn slow_sequences(&mut self) -> Vec<Sequence> {
        let gens = slow::all(&mut self.rng, self.selection);
        gens.into_iter().map(|g| self.sequence(g)).collect()
    }

    /// Returns the next sequence.
    pub fn next_sequence(&mut self) -> Sequence {
        let mut g = Gen::new(self.rng.split());
        let mixed = self.aimed.len() > 1 && self.rng.percent(30);
        let mut place = self.least_dealt();
        let mut second_ascii = 0;
        for _ in 0..self.rng.between(20, 80) {
            if mixed && self.rng.percent(25) {
                place = self.least_dealt();
                // A third connection speaks text, too.
                second_ascii = if self.rng.percent(50) { 2 } else { 0 };
            }
            let decks = if self.rng.percent(6) { &mut self.blind } else { &mut self.aimed };
            let recipe = decks[place].deal(&mut self.rng);
            let conn = if recipe.wire == Wire::Binary { 1 } else { second_ascii };
            g.turn_to(conn, recipe.wire);
            (recipe.make)(&mut g, recipe.variant);
        }
        if self.selection.drifts() && self.rng.percent(60) {
            let recipe = self.drifts.deal(&mut self.rng);
            g.turn_to(0, Wire::Ascii);
            (recipe.make)(&mut g, recipe.variant);
        }
        self.sequence(g)
    }

    fn sequence(&mut self, g: Gen) -> Sequence {
        self.made += 1;
        Sequence { number: self.made, steps: g.into_steps() }
    }

    /// Returns the index of the deck that was dealt least.
    fn least_dealt(&mut self) -> usize {
        let order = |a: &usize, b: &usize| self.aimed[*a].rounds().total_cmp(&self.aimed[*b].rounds());
        (0..self.aimed.len()).min_by(order).expect("there is a deck")
    }
}

fn known_difference(g: &mut Gen, entry: usize) {
    for unit in Unit::of_drift(&drift::TABLE[entry]) {
        g.send(unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::prefix;
    use crate::unit::Shape;

    fn sent(unit: &Unit) -> Vec<u8> {
        let mut bytes = Vec::new();
        unit.request.render(&prefix(1), |_| Some(50), &mut bytes);
        bytes
    }

    fn units(seed: u64, selection: Selection, sequences: usize) -> Vec<Unit> {
        let mut generator = Generator::new(seed, selection);
        let steps = (0..sequences).flat_map(|_| generator.next_sequence().steps).collect::<Vec<_>>();
        steps.iter().filter_map(|step| step.unit().cloned()).collect()
    }

    #[test]
    fn the_same_seed_makes_the_same_sequences() {
        let bytes = |seed| units(seed, Selection::All, 20).iter().map(sent).collect::<Vec<_>>();
        assert_eq!(bytes(4), bytes(4));
        assert_ne!(bytes(4), bytes(5));
    }

    #[test]
    fn no_known_difference_is_generated() {
        for unit in units(1, Selection::All, 300).iter().filter(|unit| unit.wire == Wire::Ascii) {
            let bytes = sent(unit);
            if unit.drift.is_some() || unit.command == "drift setup" {
                continue;
            }
            let line = bytes.split(|&byte| byte == b'\n').next().expect("a first line");
            assert!(line.len() >= 3, "{:?} is a short line", unit.command);
            assert!(line[0] != b' ', "{:?} starts with a space", unit.command);
            assert!(!line.contains(&0), "{:?} has a NUL in its line", unit.command);
            let words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).count();
            assert!(words <= 24 || unit.shape == Shape::Values, "{:?} has {words} words", unit.command);
            assert!(drift::TABLE.iter().all(|drift| drift.sent.as_bytes() != bytes));
        }
    }

    #[test]
    fn binary_packets_carry_their_lengths() {
        for unit in units(2, Selection::Binary, 100) {
            let bytes = sent(&unit);
            if unit.command == crate::table::BAD_LEN || unit.command == crate::table::BAD_MAGIC {
                continue;
            }
            let body_len = u32::from_be_bytes(bytes[8..12].try_into().expect("four bytes"));
            assert_eq!(bytes.len(), 24 + body_len as usize, "{}", unit.command);
            assert_eq!(bytes[12..16], unit.opaque.to_be_bytes());
        }
    }

    #[test]
    fn a_selection_uses_only_its_protocols() {
        assert!(units(3, Selection::Binary, 30).iter().all(|unit| unit.wire == Wire::Binary));
        assert!(units(3, Selection::Text, 30).iter().all(|unit| unit.wire == Wire::Ascii));
        assert!(units(3, Selection::Meta, 30).iter().all(|unit| unit.wire == Wire::Ascii));
        let mixed = units(3, Selection::All, 200);
        assert!(mixed.iter().any(|unit| unit.conn == 2));
    }

    #[test]
    fn recipes_are_equally_frequent() {
        let mut rng = SplitMix64::new(9);
        let mut deck = Deck::new(Recipe::all(Wire::Ascii, |_, _| (), 7).collect());
        let mut dealt = [0; 7];
        for _ in 0..70 {
            dealt[deck.deal(&mut rng).variant] += 1;
        }
        assert_eq!(dealt, [10; 7]);
    }
}
