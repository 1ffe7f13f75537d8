package model

// State is how a Service is doing on this node.
type State uint8

// The states.
const (
	Programmed State = iota // everything that it asks for works
	Partial                 // it works, but for problems that are told
	Failing                 // the data plane refuses part of it; retried
	States                  // how many there are
)

// String returns the state's name: stable, for machines.
func (s State) String() string { return [...]string{"Programmed", "Partial", "Failing"}[s] }

// StateOf tells the state of a Service from what is known of it.
func StateOf(failing, problems bool) State {
	switch {
	case failing:
		return Failing
	case problems:
		return Partial
	}
	return Programmed
}
