// SPDX-License-Identifier: Apache-2.0

// Package folders keeps what Tandem writes on a Windows node out of reach of
// ordinary users: in %ProgramData% each user may create files and folders, and
// keeps control over them.
//
// x/sys/windows reads security descriptors; descriptor.untrusted judges who may write by
// them. It is pure, tested on any system, and rejects what it does not understand.
package folders
