package windows

import (
	"fmt"
	"strconv"
	"strings"
)

// productVersion returns the version that Windows Installer compares: three
// numbers, the first two below 256 and the third below 65536. What comes after
// them in a version does not count. One that is not released, and so has no
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
