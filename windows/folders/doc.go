// SPDX-License-Identifier: Apache-2.0

// Package folders keeps what Tandem writes on a Windows node out of reach of
// ordinary users: in %ProgramData% each user may create files and folders, and
// keeps control over them.
//
// x/sys/windows reads security descriptors; who may write by one is judged apart from that
// (descriptor.untrusted): so the judgement is pure, is tested on any system, and refuses what
// it does not understand.
package folders
