/** A failure of a build whose message is for the user. */
export class BuildError extends Error {
  /** The exit code of `ordain-build`. */
  exitCode = 1;
}

/** A wrong command line. */
export class UsageError extends BuildError {
  exitCode = 2;
}
