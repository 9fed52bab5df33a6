// Package gqlexec executes GraphQL requests. gqlgen generates everything else in it from the schema; graphapi calls it.
package gqlexec
