// Package customer has the commands that a customer types: `atoll cluster` and `atoll nodepool`, and `atoll policy`,
// `atoll group`, `atoll admin` and `atoll whoami` about the rights of principals in an account. They call only the
// Platform API, by package client.
//
// Only package cli imports it.
package customer
