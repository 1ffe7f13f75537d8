// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"strings"
	"testing"
)

// Files in a folder inherit the rights that are advised, a file has none to pass on, and a place
// that others use, too, is not changed.
func TestAdvice(t *testing.T) {
	const root = `C:\ProgramData\Tandem`
	for f, want := range map[fault]string{
		ofFile:   `icacls "C:\m" /setowner *S-1-5-32-544 and icacls "C:\m" /inheritance:r /grant:r *S-1-5-18:F *S-1-5-32-544:F`,
		ofFolder: `icacls "C:\m" /setowner *S-1-5-32-544 and icacls "C:\m" /inheritance:r /grant:r *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`,
		ofPlace:  root,
	} {
		got := f.advice(`C:\m`, root)
		if !strings.Contains(got, want) || f == ofPlace && strings.Contains(got, "icacls") {
			t.Errorf("%d: %s", f, got)
		}
	}
}
