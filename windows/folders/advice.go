// SPDX-License-Identifier: Apache-2.0

package folders

import "fmt"

// fault is the kind of object that unprivileged users can change.
type fault int

const (
	ofFile   fault = iota
	ofFolder       // a folder whose files are read
	ofPlace        // a folder around an input, or one that other programs use
)

// advice says how to restrict an input to administrators and the system. The rights to
// a folder include its files, which would inherit none otherwise. A place may be
// a disk or a user's profile, whose permissions must stay: the files in it have to move.
func (f fault) advice(path, root string) string {
	const grant = "if its content is right, give it to administrators and the system by " +
		"icacls \"%[1]s\" /setowner *S-1-5-32-544 and icacls \"%[1]s\" /inheritance:r /grant:r *S-1-5-18:%[2]sF *S-1-5-32-544:%[2]sF"
	switch f {
	case ofFolder:
		return fmt.Sprintf(grant, path, "(OI)(CI)")
	case ofPlace:
		return "move the needed files to " + root + ", which is closed to others, and name that in the configuration"
	}
	return fmt.Sprintf(grant, path, "")
}
