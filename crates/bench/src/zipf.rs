//! Zipf-distributed ranks.

use crate::random::Random;

/// Ranks from 1 to `n`; the probability of rank `k` is proportional to `k^-exponent`.
///
/// Uses rejection-inversion (Hörmann and Derflinger 1996), which needs no table.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    area_from: f64,
    area_to: f64,
    /// Below this bound nothing is rejected.
    sure: f64,
}

impl Zipf {
    /// Returns the distribution of `n` ranks.
    pub fn new(n: u32, exponent: f64) -> Zipf {
        let mut zipf = Zipf { n: f64::from(n), exponent, area_from: 0.0, area_to: 0.0, sure: 0.0 };
        zipf.area_from = zipf.area(1.5) - 1.0;
        zipf.area_to = zipf.area(zipf.n + 0.5);
        zipf.sure = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    /// Returns a random rank.
    pub fn sample(&self, random: &mut Random) -> u32 {
        loop {
            let u = self.area_to + random.unit() * (self.area_from - self.area_to);
            let x = self.area_inverse(u);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.sure || u >= self.area(rank + 0.5) - self.weight(rank) {
                return rank as u32;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// Returns the integral of the weight, up to a constant.
    fn area(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power == 0.0 { x.ln() } else { (x.powf(power) - 1.0) / power }
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power == 0.0 { area.exp() } else { (1.0 + area * power).powf(1.0 / power) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_probability() {
        for exponent in [0.8, 1.0, 1.2] {
            let zipf = Zipf::new(1000, exponent);
            let mut random = Random::new(3);
            let samples = 400_000;
            let mut counts = vec![0u32; 1001];
            (0..samples).for_each(|_| counts[zipf.sample(&mut random) as usize] += 1);
            let total: f64 = (1..=1000).map(|k| f64::from(k).powf(-exponent)).sum();
            for (from, to) in [(1, 1), (2, 2), (3, 10), (11, 100), (101, 1000)] {
                let weight: f64 = (from..=to).map(|k| f64::from(k).powf(-exponent)).sum();
                let expected = weight / total * f64::from(samples);
                let counted = f64::from(counts[from as usize..=to as usize].iter().sum::<u32>());
                let deviation = (counted - expected) / expected.sqrt();
                assert!(deviation.abs() < 4.0, "{exponent}: ranks {from} to {to}: {counted} not {expected}");
            }
        }
    }
}
