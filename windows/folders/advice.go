// SPDX-License-Identifier: Apache-2.0

package folders

import "fmt"

// fault is what others than administrators can change.
type fault int

const (
	ofFile   fault = iota
	ofFolder       // of files that are read
	ofPlace        // the folder that a file is in, or one that is not Tandem's alone
)

// advice says how to make an input one of administrators and the system alone. The rights to
// a folder are for the files in it, too, which would else inherit none. A place may be
// a disk or a user's profile, which is never to be changed: what is in it has to move.
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
