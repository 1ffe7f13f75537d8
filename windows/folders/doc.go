// SPDX-License-Identifier: Apache-2.0

// Package folders keeps what Tandem writes on a Windows node out of reach of
// ordinary users: in %ProgramData% each of them may make files and folders, and
// keeps what he has made.
package folders
