// SPDX-License-Identifier: Apache-2.0

package service

import "github.com/tandem-proxy/tandem/windows/folders"

// checkPermissions returns an error for a program that ordinary users can replace.
func checkPermissions(exe string) error { return folders.CheckProgram(exe) }

// CheckInput returns an error for a file or a folder of files that the service reads, and
// that others than administrators can change or have made.
func CheckInput(path string) error { return folders.CheckInput(path) }

// CreateFolders makes the folders of the service, which others can neither read nor write.
func CreateFolders() error {
	_, err := folders.Make()
	return err
}
