// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// signingKey is the environment variable with an Ed25519 private key in PEM (PKCS #8), as
// "openssl genpkey -algorithm ed25519" makes it.
const signingKey = "TANDEM_SIGNING_KEY"

// sign writes the signature of the checksums and the public key:
//
//	openssl pkeyutl -verify -rawin -pubin -inkey SHA256SUMS.pem -in SHA256SUMS -sigfile SHA256SUMS.sig
//
// The fingerprint of the key, which is printed, is to be compared with one from a trusted source:
//
//	openssl pkey -pubin -in SHA256SUMS.pem -outform der | sha256sum
func (r release) sign(context.Context) error {
	text := os.Getenv(signingKey)
	if text == "" {
		return fmt.Errorf("%s is not set", signingKey)
	}
	key, err := privateKey([]byte(text))
	if err != nil {
		return fmt.Errorf("%s: %w", signingKey, err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	path := filepath.Join(r.out, sums)
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(path+".sig", ed25519.Sign(key, content), 0o644),
		os.WriteFile(path+".pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644),
	)
	if err == nil {
		fmt.Printf("dist: signed; SHA-256 of the public key, %s.pem: %x\n", sums, sha256.Sum256(public))
	}
	return err
}

func privateKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("is no PKCS #8 key") // the error of the parser may quote it
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("is no Ed25519 key")
	}
	return key, nil
}
