// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// productVersion returns the version that Windows Installer compares: three
// numbers, the first two below 256 and the third below 65536. What comes after
// them in a version does not count: rank decides that. One that is not released, and so has no
// numbers, is older than all others.
func productVersion(v string) (string, error) {
	v = strings.TrimPrefix(v, "v")
	core, _, _ := strings.Cut(v, "-")
	core, _, _ = strings.Cut(core, "+")
	parts := strings.Split(core, ".")
	if len(parts) != 3 {
		if strings.Contains(core, ".") {
			return "", fmt.Errorf("version %q is not of three numbers, as in 1.2.3", v)
		}
		return "0.0.0", nil
	}
	var numbers []string
	for i, p := range parts {
		bits := 8
		if i == 2 {
			bits = 16
		}
		n, err := strconv.ParseUint(p, 10, bits)
		if err != nil {
			return "", fmt.Errorf("version %q cannot be one of an MSI: number %d: %w", v, i+1, err)
		}
		numbers = append(numbers, strconv.FormatUint(n, 10))
	}
	return strings.Join(numbers, "."), nil
}

// stages are what versions with the same three numbers are before they are
// released, the oldest first.
var stages = [...]string{"alpha", "beta", "rc"}

// The forms of what follows the three numbers: what `git describe` adds to a tag,
// and the tag's own, as in rc1 and beta.2.
var (
	described = regexp.MustCompile(`-([0-9]+)-g[0-9a-f]+$`)
	stage     = regexp.MustCompile(`^-([a-z]+)[.-]?([0-9]*)`)
)

// rank decides which of two versions with the same three numbers is newer: first
// what its stage is, then which of that stage, then how many commits came after
// that. All have eight digits, so that they compare as numbers and as text alike.
func rank(v string) int {
	v, _, _ = strings.Cut(v, "+")
	v = strings.TrimSuffix(v, "-dirty")
	commits := 0
	if m := described.FindStringSubmatch(v); m != nil {
		commits = number(m[1], 9999)
		v = strings.TrimSuffix(v, m[0])
	}
	_, tag, early := strings.Cut(v, "-")
	if !early {
		return (len(stages)+2)*1e7 + commits
	}
	m := stage.FindStringSubmatch("-" + strings.ToLower(tag))
	if m == nil {
		return 1e7 + commits
	}
	return (slices.Index(stages[:], m[1])+2)*1e7 + number(m[2], 999)*1e4 + commits
}

// number reads digits, of which there may be none or too many.
func number(digits string, most int) int {
	n, err := strconv.Atoi(digits)
	if err != nil && digits != "" {
		return most
	}
	return min(n, most)
}
