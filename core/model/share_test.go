// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"maps"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		has  map[string]int
		room int
		want map[string]int
	}{
		{map[string]int{}, 10, map[string]int{}},
		{map[string]int{"a": 3, "b": 4}, 10, map[string]int{"a": 3, "b": 4}},
		{map[string]int{"a": 1, "b": 100}, 10, map[string]int{"a": 1, "b": 9}},
		{map[string]int{"a": 1, "b": 100, "c": 100}, 10, map[string]int{"a": 1, "b": 4, "c": 5}},
		{map[string]int{"a": 1, "b": 1, "c": 1}, 2, map[string]int{"a": 0, "b": 1, "c": 1}},
	} {
		if got := model.Shares(c.has, c.room); !maps.Equal(got, c.want) {
			t.Errorf("of %v in %d: %v, want %v", c.has, c.room, got, c.want)
		}
	}
}

func TestLargest(t *testing.T) {
	has := map[string]int{"a": 2, "b": 3, "c": 3}
	for asks, want := range map[string]string{"b": "b", "c": "c"} {
		if got := model.Largest(has, asks); got != want {
			t.Errorf("%s asks: %s", asks, got)
		}
	}
	if got := model.Largest(has, "a"); got == "a" {
		t.Errorf("a asks: %s", got)
	}
	if got := model.Largest(nil, "new"); got != "new" {
		t.Errorf("of none: %s", got)
	}
}
