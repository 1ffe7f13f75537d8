// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Value is the value of one setting in one Config, as text. It points into the
// Config and is as safe for concurrent use as that.
type Value struct {
	Kind Kind

	// Set replaces the value. Lists and maps take any number of words, all others
	// exactly one.
	Set func(words []string) error

	// Get returns what Set would take to set the same value.
	Get func() []string

	// Check validates the value by itself; nil if every value is valid.
	Check func() error

	// Choices are all values that there are; nil where that is no short list.
	Choices []string

	// fields point to what the setting has in the Config, which may be more than its text
	// tells. Empty for settings that a running proxy has no use for.
	fields []any
}

// copyFrom takes over the value of the same setting in another Config. Both share then what
// slices, maps and pointers refer to.
func (v Value) copyFrom(other Value) {
	for i, p := range v.fields {
		reflect.ValueOf(p).Elem().Set(reflect.ValueOf(other.fields[i]).Elem())
	}
}

// String returns the value as a flag would take it.
func (v Value) String() string { return strings.Join(v.Get(), ",") }

// Kind describes the form of a value in a file, for people.
type Kind string

// The kinds.
const (
	Bool     Kind = "true or false"
	Int      Kind = "whole number"
	Number   Kind = "number"
	Duration Kind = "duration such as 30s or 1h30m"
	Text     Kind = "text"
	List     Kind = "list of texts"
	Map      Kind = "names with true or false"

	// What only the section on logging has.
	Modules  Kind = "list of filePattern with verbosity" // words are "pattern=N"
	Interval Kind = "duration such as 5s, or nanoseconds"
	Quantity Kind = "quantity such as 512 or 4Ki"
)

// Phrase returns the kind with its article, as sentences name it.
func (k Kind) Phrase() string {
	if k == Bool || k == Map {
		return string(k)
	}
	return "a " + string(k)
}

// Many reports whether values of this kind are made of several words.
func (k Kind) Many() bool { return k == List || k == Map || k == Modules }

// Zero reports whether a word is the zero value of its kind. In a file that
// means "not set" for most fields, as it does for kube-proxy.
func (k Kind) Zero(word string) bool {
	switch k {
	case Bool:
		return word == "false"
	case Duration, Interval:
		d, err := time.ParseDuration(word)
		return err == nil && d == 0
	case Int, Number, Quantity:
		n, err := strconv.ParseFloat(word, 64)
		return word == "" || err == nil && n == 0
	}
	return word == ""
}

// scalar makes a value of one word.
func scalar[T any](k Kind, p *T, parse func(string) (T, error), show func(T) string) Value {
	return Value{
		Kind: k,
		Set: func(words []string) error {
			if len(words) != 1 {
				return fmt.Errorf("takes one value, not %d", len(words))
			}
			v, err := parse(words[0])
			if err == nil {
				*p = v
			}
			return err
		},
		Get:    func() []string { return []string{show(*p)} },
		fields: []any{p},
	}
}

func boolean(p *bool) Value {
	return scalar(Bool, p, func(s string) (bool, error) {
		v, err := strconv.ParseBool(s)
		if err != nil {
			return false, fmt.Errorf("%s is not true or false", quote(s))
		}
		return v, nil
	}, strconv.FormatBool)
}

// integer is a number of 32 bits, as all of kube-proxy's are.
func integer(p *int, least, most int) Value {
	v := scalar(Int, p, func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 0, 32)
		if err != nil {
			return 0, fmt.Errorf("%s is not a whole number of 32 bits", quote(s))
		}
		return int(n), nil
	}, strconv.Itoa)
	v.Check = func() error {
		switch {
		case *p < least && most == maxInt:
			return fmt.Errorf("%d is less than %d", *p, least)
		case *p < least || *p > most:
			return fmt.Errorf("%d is outside %d to %d", *p, least, most)
		}
		return nil
	}
	return v
}

// maxInt is for integers without an upper limit.
const maxInt = 1<<31 - 1

func number(p *float32) Value {
	return scalar(Number, p, func(s string) (float32, error) {
		n, err := strconv.ParseFloat(s, 32)
		if err != nil || n != n || n-n != 0 {
			return 0, fmt.Errorf("%s is not a number", quote(s))
		}
		return float32(n), nil
	}, func(n float32) string { return strconv.FormatFloat(float64(n), 'g', -1, 32) })
}

func duration(p *time.Duration) Value {
	v := scalar(Duration, p, parseDuration, time.Duration.String)
	v.Check = func() error {
		if *p < 0 {
			return fmt.Errorf("%s is negative", *p)
		}
		return nil
	}
	return v
}

// period is a duration that cannot be 0.
func period(p *time.Duration) Value {
	v := duration(p)
	v.Check = func() error {
		if *p <= 0 {
			return fmt.Errorf("%s: must be greater than 0", *p)
		}
		return nil
	}
	return v
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%s has no unit: write %ss for seconds", quote(s), s)
	}
	return 0, fmt.Errorf("%s is not a duration such as 30s or 1h30m", quote(s))
}

// optional is a value that may be absent. Absent it reads as the zero value.
func optional[T any](p **T, of func(*T) Value) Value {
	held := new(T)
	if *p != nil {
		*held = **p
	}
	v := of(held)
	v.fields = []any{p}
	set, check := v.Set, v.Check
	v.Set = func(words []string) error {
		err := set(words)
		if err == nil {
			fresh := *held
			*p = &fresh
		}
		return err
	}
	v.Check = func() error {
		if *p == nil || check == nil {
			return nil
		}
		return check()
	}
	return v
}

// text is any text; ok, if not nil, validates it.
func text[T ~string](p *T, ok func(string) error) Value {
	v := scalar(Text, p, func(s string) (T, error) { return T(s), nil }, func(s T) string { return string(s) })
	if ok != nil {
		v.Check = func() error { return ok(string(*p)) }
	}
	return v
}

// choice is one of a few texts.
func choice[T ~string](p *T, names ...T) Value {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	v := text(p, func(s string) error {
		if slices.Contains(list, s) {
			return nil
		}
		return fmt.Errorf("%s is not one of %s", quote(s), strings.Join(list, ", "))
	})
	v.Choices = list
	return v
}

// quote returns what a user wrote for a message: nothing in it can disturb a
// terminal.
func quote(s string) string {
	const longest = 60
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "..."
	}
	return strconv.Quote(s)
}
