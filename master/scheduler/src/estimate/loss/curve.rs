//! A user's own convergence curve, such as `a/(k+b)+c`: k is the step, every other name a free
//! constant that is not negative.

/// Most characters of a curve: beyond it is not a formula but an attack on the parser.
const LENGTH_MAX: usize = 400;
/// Deepest nesting of parentheses, signs and powers.
const DEPTH_MAX: u32 = 32;
/// Most free constants: a loss curve does not tell more.
pub(super) const CONSTANTS_MAX: usize = 8;

/// A parsed curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    root: Node,
    names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Number(f64),
    Step,
    Constant(usize),
    Negative(Box<Node>),
    Two(Operator, Box<Node>, Box<Node>),
    Call(Function, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Plus,
    Minus,
    Times,
    Over,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Exp,
    Log,
    Sqrt,
}

/// A value and its derivatives by the free constants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dual {
    pub(super) value: f64,
    pub(super) by: [f64; CONSTANTS_MAX],
}

impl Dual {
    fn constant(value: f64) -> Self {
        Self { value, by: [0.0; CONSTANTS_MAX] }
    }

    /// Chain rule for a function of one.
    fn map(self, value: f64, slope: f64) -> Self {
        Self { value, by: self.by.map(|by| if by.abs() > 0.0 { slope * by } else { 0.0 }) }
    }

    fn both(self, other: Self, value: f64, slopes: [f64; 2]) -> Self {
        let (a, b) = (self.map(value, slopes[0]), other.map(value, slopes[1]));
        let mut sum = a;
        for (sum, by) in sum.by.iter_mut().zip(b.by) {
            *sum += by;
        }
        sum
    }
}

impl Curve {
    /// Parses a formula in k: numbers, names, `+ - * / ^`, parentheses, exp, log and sqrt.
    ///
    /// # Errors
    /// What is wrong, at which character, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let characters: Vec<char> = text.chars().collect();
        if characters.len() > LENGTH_MAX {
            return Err(format!(
                "the curve has {} characters, at most {LENGTH_MAX} are read: shorten it",
                characters.len()
            ));
        }
        let mut parser = Parser { characters, at: 0, names: Vec::new(), depth: 0 };
        let root = parser.sum()?;
        if let Some(rest) = parser.peek() {
            return Err(parser.error(match rest {
                ')' => "this ')' closes nothing: remove it".to_owned(),
                'a'..='z' | 'A'..='Z' | '_' | '0'..='9' | '.' | '(' => {
                    "an operator is missing: write 2*k, not 2k".to_owned()
                }
                other => format!("'{other}' is not known: use + - * / ^ ( ) and names"),
            }));
        }
        let names = parser.names;
        if names.is_empty() {
            return Err("the curve has no free constant: name one, as a in a/k".to_owned());
        }
        if !root.has_step() {
            return Err("the curve does not depend on the step: use k for it".to_owned());
        }
        Ok(Self { root, names })
    }

    /// Names of the free constants, in the order in which they appear.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The curve at a step; it may not be finite.
    #[must_use]
    pub fn at(&self, step: f64, constants: impl IntoIterator<Item = f64>) -> f64 {
        let mut values = [0.0; CONSTANTS_MAX];
        for (slot, value) in values.iter_mut().zip(constants) {
            *slot = value;
        }
        self.root.value(step, &values)
    }

    pub(super) fn derivatives(&self, step: f64, constants: &[f64; CONSTANTS_MAX]) -> Dual {
        self.root.dual(step, constants)
    }
}

impl Node {
    fn has_step(&self) -> bool {
        match self {
            Self::Step => true,
            Self::Number(_) | Self::Constant(_) => false,
            Self::Negative(one) | Self::Call(_, one) => one.has_step(),
            Self::Two(_, a, b) => a.has_step() || b.has_step(),
        }
    }

    fn value(&self, step: f64, constants: &[f64; CONSTANTS_MAX]) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::Step => step,
            Self::Constant(index) => constants[*index],
            Self::Negative(one) => -one.value(step, constants),
            Self::Call(function, one) => function.value(one.value(step, constants)),
            Self::Two(operator, a, b) => {
                operator.value(a.value(step, constants), b.value(step, constants))
            }
        }
    }

    fn dual(&self, step: f64, constants: &[f64; CONSTANTS_MAX]) -> Dual {
        match self {
            Self::Number(number) => Dual::constant(*number),
            Self::Step => Dual::constant(step),
            Self::Constant(index) => {
                let mut one = Dual::constant(constants[*index]);
                one.by[*index] = 1.0;
                one
            }
            Self::Negative(one) => {
                let one = one.dual(step, constants);
                one.map(-one.value, -1.0)
            }
            Self::Call(function, one) => {
                let one = one.dual(step, constants);
                let value = function.value(one.value);
                one.map(
                    value,
                    match function {
                        Function::Exp => value,
                        Function::Log => 1.0 / one.value,
                        Function::Sqrt => 0.5 / value,
                    },
                )
            }
            Self::Two(operator, a, b) => {
                let (a, b) = (a.dual(step, constants), b.dual(step, constants));
                let value = operator.value(a.value, b.value);
                let slopes = match operator {
                    Operator::Plus => [1.0, 1.0],
                    Operator::Minus => [1.0, -1.0],
                    Operator::Times => [b.value, a.value],
                    Operator::Over => [1.0 / b.value, -value / b.value],
                    Operator::Power => {
                        [b.value * libm::pow(a.value, b.value - 1.0), value * libm::log(a.value)]
                    }
                };
                a.both(b, value, slopes)
            }
        }
    }
}

impl Operator {
    fn value(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Plus => a + b,
            Self::Minus => a - b,
            Self::Times => a * b,
            Self::Over => a / b,
            Self::Power => libm::pow(a, b),
        }
    }
}

impl Function {
    fn value(self, x: f64) -> f64 {
        match self {
            Self::Exp => libm::exp(x),
            Self::Log => libm::log(x),
            Self::Sqrt => x.sqrt(),
        }
    }
}

struct Parser {
    characters: Vec<char>,
    at: usize,
    names: Vec<String>,
    depth: u32,
}

impl Parser {
    fn peek(&mut self) -> Option<char> {
        while self.characters.get(self.at).is_some_and(|next| next.is_whitespace()) {
            self.at += 1;
        }
        self.characters.get(self.at).copied()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn error(&self, what: impl AsRef<str>) -> String {
        format!("character {} of the curve: {}", self.at + 1, what.as_ref())
    }

    fn sum(&mut self) -> Result<Node, String> {
        let mut left = self.product()?;
        loop {
            let operator = match self.peek() {
                Some('+') => Operator::Plus,
                Some('-') => Operator::Minus,
                _ => return Ok(left),
            };
            self.at += 1;
            left = Node::Two(operator, Box::new(left), Box::new(self.product()?));
        }
    }

    fn product(&mut self) -> Result<Node, String> {
        let mut left = self.signed()?;
        loop {
            let operator = match self.peek() {
                Some('*') if self.characters.get(self.at + 1) == Some(&'*') => {
                    return Err(self.error("write ^ for a power, not **"));
                }
                Some('*') => Operator::Times,
                Some('/') => Operator::Over,
                _ => return Ok(left),
            };
            self.at += 1;
            left = Node::Two(operator, Box::new(left), Box::new(self.signed()?));
        }
    }

    fn signed(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self
                .error(format!("nested more than {DEPTH_MAX} deep: remove parentheses or signs")));
        }
        let node = if self.take('-') {
            Node::Negative(Box::new(self.signed()?))
        } else if self.take('+') {
            self.signed()?
        } else {
            let base = self.single()?;
            if self.take('^') {
                Node::Two(Operator::Power, Box::new(base), Box::new(self.signed()?))
            } else {
                base
            }
        };
        self.depth -= 1;
        Ok(node)
    }

    fn single(&mut self) -> Result<Node, String> {
        match self.peek() {
            Some('(') => self.parentheses(),
            Some('0'..='9' | '.') => self.number(),
            Some('a'..='z' | 'A'..='Z' | '_') => self.name(),
            Some(other) => {
                Err(self.error(format!("'{other}' where a number, a name or '(' belongs")))
            }
            None => Err(self.error("it ends where a number, a name or '(' belongs: complete it")),
        }
    }

    fn parentheses(&mut self) -> Result<Node, String> {
        let opened = self.at + 1;
        self.at += 1;
        let inner = self.sum()?;
        if self.take(')') {
            return Ok(inner);
        }
        Err(self
            .error(format!("the '(' of character {opened} is not closed: add ')' or an operator")))
    }

    fn number(&mut self) -> Result<Node, String> {
        let from = self.at;
        let digit = |at: usize| self.characters.get(at).is_some_and(char::is_ascii_digit);
        let mut to = from;
        while digit(to) || self.characters.get(to) == Some(&'.') {
            to += 1;
        }
        if matches!(self.characters.get(to), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.characters.get(to + 1), Some('+' | '-')));
            if digit(to + 1 + sign) {
                to += 1 + sign;
                while digit(to) {
                    to += 1;
                }
            }
        }
        let text: String = self.characters[from..to].iter().collect();
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        let Some(number) = number else {
            return Err(self.error(format!("'{text}' is no number: write one like 0.5 or 1e-3")));
        };
        self.at = to;
        Ok(Node::Number(number))
    }

    fn name(&mut self) -> Result<Node, String> {
        let from = self.at;
        let mut to = from;
        let part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        while self.characters.get(to).is_some_and(part) {
            to += 1;
        }
        let name: String = self.characters[from..to].iter().collect();
        let function = match name.as_str() {
            "exp" => Some(Function::Exp),
            "log" => Some(Function::Log),
            "sqrt" => Some(Function::Sqrt),
            _ => None,
        };
        self.at = to;
        let called = self.peek() == Some('(');
        match (function, called) {
            (Some(function), true) => {
                return Ok(Node::Call(function, Box::new(self.parentheses()?)));
            }
            (Some(_), false) => {
                return Err(self.error(format!("{name} needs parentheses: write {name}(...)")));
            }
            (None, true) => {
                self.at = from;
                return Err(self.error(format!(
                    "no function is called {name}: there are exp, log and sqrt; write * to multiply"
                )));
            }
            (None, false) => {}
        }
        if name == "k" {
            return Ok(Node::Step);
        }
        if let Some(index) = self.names.iter().position(|known| *known == name) {
            return Ok(Node::Constant(index));
        }
        if self.names.len() == CONSTANTS_MAX {
            self.at = from;
            return Err(self.error(format!(
                "{name} is one free constant too many: at most {CONSTANTS_MAX} can be fitted"
            )));
        }
        self.names.push(name);
        Ok(Node::Constant(self.names.len() - 1))
    }
}
