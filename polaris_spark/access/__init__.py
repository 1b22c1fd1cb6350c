"""Access control: principals, roles and grants, and the check whether a principal may do something.

The reference `access` of a realm contains all principals, roles and grants, as rows and index entries of ordinary
commits. A realm without this reference has no access control. `bootstrap` creates the reference.
"""
