// SPDX-License-Identifier: Apache-2.0

// Package folders keeps what Tandem writes on a Windows node out of reach of
// ordinary users: in %ProgramData% each user may create files and folders, and
// keeps control over them.
package folders
